#!/bin/sh
# Draws the main panels from live data with Grafana's own components: runs the demo with its incident, asks its Prometheus for what the panels
# show, and has a headless Chromium draw it. Optional, about three minutes; needs node, npm, chromium, prometheus and a built dedup.
#
#     sh infra/grafana/pictures/draw.sh            writes infra/grafana/pictures/*.png
#
# DEDUP: the executable (default target/release/dedup). WORK: a folder to keep for the next time (default: a temporary one).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
dedup=${DEDUP:-$here/../../../target/release/dedup}
if [ -n "${WORK:-}" ]; then work=$WORK; mkdir -p "$work"; else work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; fi
cd "$work"

if [ ! -d node_modules ]; then
    cp "$here/package.json" .
    npm install --no-audit --no-fund --silent --ignore-scripts --legacy-peer-deps
fi
cp "$here/page.tsx" .
node_modules/.bin/esbuild page.tsx --bundle --outfile=page.js --format=iife --log-level=error --define:global=window \
    --define:process.env.NODE_ENV='"production"' --loader:.svg=dataurl --loader:.png=dataurl --loader:.ttf=dataurl --loader:.woff2=dataurl --loader:.woff=dataurl
echo '<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="page.css"><style>*{box-sizing:border-box}body{margin:0}</style><div id="root"></div><script src="data.js"></script><script src="page.js"></script>' >page.html

rm -f ready.json
"$dedup" demo --incident --seconds 0 --rate 600 --ready-file "$work/ready.json" >demo.log &
demo=$!
for _ in $(seq 300); do [ -s ready.json ] && break; sleep 0.2; done
prometheus=$(node -p 'require("./ready.json").prometheus')
# The incident is at 45 s and lasts 60 s.
sleep "${SECONDS_OF_DATA:-118}"
python3 "$here/capture.py" "$prometheus" data.json 115
kill -INT "$demo"
wait "$demo"
{ printf 'var CAPTURED = '; cat data.json; } >data.js

picture() { # NAME FIRST LAST ROWS
    chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --allow-file-access-from-files --virtual-time-budget=8000 \
        --window-size=1144,$((308 * $4 + 8)) --screenshot="$here/$1.png" "file://$work/page.html#$2-$3" 2>/dev/null
}
picture overview 0 3 2
picture topic 4 5 1
picture service 6 9 2
