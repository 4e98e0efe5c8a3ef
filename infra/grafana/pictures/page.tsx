// Draws captured panels with Grafana's own components (@grafana/ui), two in a row.
import { createElement as h, type ReactElement } from 'react';
import { createRoot } from 'react-dom/client';
import {
  createTheme, dateTime, FieldColorModeId, FieldType, getDisplayProcessor, getDisplayValueAlignmentFactors, ThemeContext, toDataFrame,
  type DataFrame, type DisplayValueAlignmentFactors, type Field,
} from '@grafana/data';
import { BarGauge, GlobalStyles, PanelChrome, TimeSeries, VizRepeater } from '@grafana/ui';
import '@fontsource/inter/latin-400.css';
import '@fontsource/inter/latin-500.css';

declare const CAPTURED: any;
const theme = createTheme({ colors: { mode: 'light' } });
const [WIDTH, HEIGHT, GAP] = [560, 300, 8];
// Which of the panels: #FIRST-LAST.
const [FIRST, LAST] = location.hash.slice(1).split('-').map(Number);

/** One frame on a common time axis, where a missing value is a gap; its fields are set up as the dashboard says. */
function frameOf({ panel, series }: any): DataFrame {
  const times = [...new Set<number>(series.flatMap((s: any) => s.values.map(([t]: number[]) => t)))].sort((a, b) => a - b);
  const color = { mode: panel.type === 'bargauge' ? FieldColorModeId.Thresholds : FieldColorModeId.PaletteClassic };
  const frame = toDataFrame({
    fields: [{ name: 'Time', type: FieldType.time, values: times }, ...series.map(({ name, values }: any) => {
      const known = new Map<number, number | null>(values);
      const config = { ...panel.fieldConfig.defaults, displayName: name, color };
      return { name, type: FieldType.number, values: times.map((t) => known.get(t) ?? null), config };
    })],
  });
  frame.fields.forEach((field, n) => {
    field.state = { seriesIndex: n - 1 };
    field.display = getDisplayProcessor({ field, theme });
  });
  return frame;
}

function lines(captured: any, width: number, height: number): ReactElement {
  const [from, to] = [dateTime(CAPTURED.from), dateTime(CAPTURED.to)];
  const timeRange = { from, to, raw: { from, to } };
  return h(TimeSeries, { frames: [frameOf(captured)], width, height, timeRange, timeZone: 'utc', legend: captured.panel.options.legend });
}

function bars(captured: any, width: number, height: number): ReactElement {
  const { orientation, displayMode } = captured.panel.options;
  const last = (field: Field) => ({ field, display: { ...field.display!(field.values.findLast((value) => value !== null)), title: field.config.displayName } });
  return h(VizRepeater<ReturnType<typeof last>, DisplayValueAlignmentFactors>, {
    width, height, orientation, source: captured, renderCounter: 0, itemSpacing: 8, minVizHeight: 16, maxVizHeight: 300,
    getValues: () => frameOf(captured).fields.slice(1).map(last),
    getAlignmentFactors: (all) => getDisplayValueAlignmentFactors(all as any),
    renderValue: ({ value: { field, display }, width, height, alignmentFactors }) =>
      h(BarGauge, { value: display, field: field.config, display: field.display, theme, width, height, alignmentFactors, orientation, displayMode }),
  });
}

function Picture({ captured }: any) {
  const { title, description, type } = captured.panel;
  const children = (width: number, height: number) => (type === 'bargauge' ? bars : lines)(captured, width, height);
  return h(PanelChrome, { title, description, width: WIDTH, height: HEIGHT, children });
}

function Pictures() {
  const style = { display: 'grid', gridTemplateColumns: `${WIDTH}px ${WIDTH}px`, gap: GAP, padding: GAP, background: theme.colors.background.canvas };
  return h(ThemeContext.Provider, { value: theme }, h(GlobalStyles, {}),
    h('div', { style }, CAPTURED.panels.slice(FIRST, LAST + 1).map((captured: any) => h(Picture, { key: captured.panel.title, captured }))));
}

// A canvas does not wait for its font.
Promise.all(['400 12px Inter', '500 14px Inter'].map((font) => document.fonts.load(font)))
  .then(() => createRoot(document.getElementById('root')!).render(h(Pictures)));
