#!/bin/sh
# Checks the dashboards against Grafana's own schema types. Optional: needs node and npm, and downloads two packages into a folder of its own.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$here/package.json" "$work"
cd "$work"
npm install --no-audit --no-fund --silent --ignore-scripts

cat >plain.ts <<'TS'
import type { Dashboard } from '@grafana/schema';
// JSON has an enumeration's value where the types want its name.
export type Plain<T> = T extends string ? `${T}` : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;
// Grafana fills in what the options of a panel leave out.
export type Some<T> = T extends string ? `${T}` : T extends (infer E)[] ? Some<E>[] : T extends object ? { [K in keyof T]?: Some<T[K]> } : T;
export type PlainDashboard = Plain<Dashboard>;
TS
cat >typed.js <<'JS'
const board = JSON.parse(require('fs').readFileSync(process.argv[2]));
// What only Prometheus knows of an annotation; the schema leaves it to the data source.
for (const a of board.annotations.list) for (const own of ['expr', 'titleFormat', 'textFormat', 'step']) delete a[own];
const json = (value) => JSON.stringify(value, null, 1);
console.log(`import type { PlainDashboard, Some } from './plain';\nexport const board: PlainDashboard = ${json(board)};`);
// To the type of a dashboard a panel's options are any object; each kind of panel has a type of its own for them.
const KINDS = { bargauge: 'BarGauge', heatmap: 'Heatmap', stat: 'Stat', table: 'Table', timeseries: 'TimeSeries' };
for (const [kind, name] of Object.entries(KINDS))
  console.log(`import type * as ${kind} from '@grafana/schema/dist/esm/raw/composable/${kind}/panelcfg/x/${name}PanelCfg_types.gen';`);
for (const { id, type, options, fieldConfig } of board.panels.filter((panel) => panel.type !== 'row')) {
  console.log(`export const options${id}: Some<${type}.Options> = ${json(options)};`);
  if (fieldConfig.defaults.custom) console.log(`export const custom${id}: Some<${type}.FieldConfig> = ${json(fieldConfig.defaults.custom)};`);
}
JS
for file in "$here"/../dashboards/*.json; do
    node typed.js "$file" >"$(basename "$file" .json).ts"
done
node_modules/.bin/tsc --noEmit --strict --skipLibCheck --module esnext --moduleResolution bundler --target es2022 ./*.ts
echo "all dashboards fit @grafana/schema $(node -p 'require("@grafana/schema/package.json").version')"
