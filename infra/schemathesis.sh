#!/bin/sh
# Runs Schemathesis over the OpenAPI document that a demo serves. Optional: it needs python3 with venv, and installs from PyPI.
# EXAMPLES: generated requests an operation (50). Everything it makes is below target/schemathesis.
set -eu
cd "$(dirname "$0")/.."

home=target/schemathesis
bin=${DEDUP_BIN:-target/debug/dedup}
mkdir -p "$home"
if ! [ -x "$home/venv/bin/st" ]; then
    python3 -m venv "$home/venv"
    "$home/venv/bin/pip" install --quiet --disable-pip-version-check 'schemathesis>=4,<5'
fi

ready=$home/ready.json
rm -f "$ready"
"$bin" demo --no-traffic --ready-file "$ready" > "$home/demo.log" 2>&1 &
demo=$!
trap 'kill -INT $demo 2>/dev/null || true; wait $demo 2>/dev/null || true' EXIT
until [ -s "$ready" ]; do
    kill -0 $demo 2>/dev/null || { cat "$home/demo.log"; exit 1; }
    sleep 0.2
done
url=$(grep -o 'http://[0-9.:]*' "$ready" | head -n 1)

# positive_data_acceptance is left out: that a prefix names no region cannot be told from the document.
"$home/venv/bin/st" --config-file infra/schemathesis.toml run "$url/openapi.json" --max-examples "${EXAMPLES:-50}" --workers 1 --request-timeout 40 \
    --exclude-checks positive_data_acceptance "$@"
