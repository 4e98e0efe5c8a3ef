#!/bin/sh
# Asks a service thousands of requests that Schemathesis makes up from its OpenAPI document, right ones and wrong ones: no answer may be a
# fault of the service, have a status or type the document does not name, or a body other than its schema says.
#
#   sh tests/schemathesis.sh [URL] [OPTIONS OF "schemathesis run"]
#
# Without a URL three regions are started for it, and ended. Schemathesis (Python) is installed into target/schemathesis.
set -eu
cd "$(dirname "$0")/.."

venv=target/schemathesis
# (A folder that was moved has programs that name the old place.)
if ! "$venv/bin/schemathesis" --version >/dev/null 2>&1; then
    python3 -m venv --clear "$venv"
    "$venv/bin/pip" install --quiet 'schemathesis==4.*'
fi

case "${1:-}" in
http*)
    url=$1
    shift
    ;;
*)
    sh infra/setup.sh
    cargo build --quiet -p dedup
    ready=$(mktemp)
    rm "$ready"
    target/debug/dedup demo --no-traffic --ready-file "$ready" >/dev/null &
    demo=$!
    trap 'kill -INT "$demo" 2>/dev/null; wait "$demo" || :; rm -f "$ready"' EXIT
    while [ ! -s "$ready" ]; do
        kill -0 "$demo"
        sleep 0.2
    done
    url=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["regions"][0]["url"])' "$ready")
    ;;
esac

"$venv/bin/schemathesis" --config-file tests/schemathesis.toml run "$url/openapi.json" --url "$url" --max-examples 150 --workers 2 --continue-on-failure \
    --checks not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,allow_header_conformance "$@"
