#!/bin/sh
# Draws the main panels from live data with Grafana's own components: runs the demo with its incident, asks its Prometheus for what the panels
# show, and has a headless Chromium draw it. Optional, about three minutes; needs node, npm, chromium, prometheus and a built dedup.
#
#     sh infra/grafana/pictures/draw.sh            writes infra/grafana/pictures/*.png
#
# DEDUP: the executable (default target/release/dedup). WORK: a folder to keep for the next time (default: a temporary one).
set -eu
for tool in node npm chromium prometheus; do command -v $tool >/dev/null || { echo "$tool is needed" >&2; exit 1; }; done
here=$(cd "$(dirname "$0")" && pwd)
dedup=$(realpath "${DEDUP:-$here/../../../target/release/dedup}")
demo=
ended() {
    if [ -n "$demo" ]; then kill "$demo" && wait "$demo" || true; fi
    if [ -z "${WORK:-}" ]; then rm -rf "$work"; fi
}
work=${WORK:-$(mktemp -d)}
trap ended EXIT
trap 'exit 1' INT TERM
mkdir -p "$work"
cd "$work"

cp "$here/package.json" "$here/page.tsx" .
npm install --no-audit --no-fund --silent --ignore-scripts --prefer-offline
node_modules/.bin/esbuild page.tsx --bundle --outfile=page.js --format=iife --log-level=error \
    --define:global=window --define:process.env.NODE_ENV='"production"' \
    --loader:.svg=dataurl --loader:.png=dataurl --loader:.ttf=dataurl --loader:.woff2=dataurl --loader:.woff=dataurl
cat >page.html <<'HTML'
<!doctype html>
<meta charset="utf-8">
<link rel="stylesheet" href="page.css">
<style>body { margin: 0 }</style>
<div id="root"></div>
<script src="data.js"></script>
<script src="page.js"></script>
HTML

rm -f ready.json
"$dedup" demo --incident --seconds 0 --rate 600 --ready-file ready.json >demo.log &
demo=$!
for _ in $(seq 300); do [ -s ready.json ] && break; kill -0 "$demo"; sleep 0.2; done
prometheus=$(node -p 'require("./ready.json").prometheus')
# The incident is at 45 s and lasts 60 s. The first seconds are left out: a rate needs some before it is one.
sleep 120
python3 "$here/capture.py" "$prometheus" data.json 105
kill "$demo"
wait "$demo"
demo=
{ printf 'var CAPTURED = '; cat data.json; } >data.js

picture() { # NAME FIRST LAST ROWS
    chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --allow-file-access-from-files --virtual-time-budget=8000 \
        --user-data-dir="$PWD/profile" --enable-logging=stderr --window-size=1144,$((308 * $4 + 8)) \
        --screenshot="$here/$1.png" "file://$PWD/page.html#$2-$3" 2>chromium.log
    # What Chromium does not tell by its exit code: a page that failed is a blank one.
    [ "$(wc -c <"$here/$1.png")" -gt 10000 ] || { cat chromium.log >&2; exit 1; }
}
picture overview 0 3 2
picture topic 4 5 1
picture service 6 9 2
