#!/bin/sh
# Checks the dashboards against Grafana's own schema types. Optional: needs node and npm, and downloads two packages into a folder of its own.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$here/package.json" "$work"
cd "$work"
npm install --no-audit --no-fund --silent

# JSON has an enumeration's value where the types want its name.
cat >plain.ts <<'TS'
import type { Dashboard } from '@grafana/schema';
export type Plain<T> = T extends string ? `${T}` : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;
export type PlainDashboard = Plain<Dashboard>;
TS
for file in "$here"/../dashboards/*.json; do
    name=$(basename "$file" .json)
    node -e '
        const board = JSON.parse(require("fs").readFileSync(process.argv[1]));
        // What only Prometheus knows of an annotation; the schema leaves it to the data source.
        for (const a of board.annotations.list) for (const own of ["expr", "titleFormat", "textFormat", "step"]) delete a[own];
        console.log("import type { PlainDashboard } from \"./plain\";\nexport const board: PlainDashboard = " + JSON.stringify(board, null, 1) + ";");
    ' "$file" >"$name.ts"
done
node_modules/.bin/tsc --noEmit --strict --skipLibCheck --module esnext --moduleResolution bundler --target es2022 ./*.ts
echo "all dashboards fit @grafana/schema $(node -p 'require("@grafana/schema/package.json").version')"
