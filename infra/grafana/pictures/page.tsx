// Draws captured panels with Grafana's own components (@grafana/ui), two in a row.
import { createElement as h } from 'react';
import { createRoot } from 'react-dom/client';
import {
  createTheme, FieldColorModeId, FieldType, getDisplayProcessor, getFieldColorModeForField, LoadingState, toDataFrame, ThemeContext, type DataFrame,
} from '@grafana/data';
import { BarGauge, PanelChrome, UPlotChart, UPlotConfigBuilder, VizLayout, VizLegend } from '@grafana/ui';

declare const CAPTURED: any;
const theme = createTheme({ colors: { mode: 'light' } });
const WIDTH = 560, HEIGHT = 300;
// Which of the panels: #FIRST-LAST.
const [FIRST, LAST] = location.hash.slice(1).split('-').map(Number);

/** One frame on a common time axis, fields set up as the dashboard says. */
function frameOf({ panel, series }: any): DataFrame {
  const times = [...new Set<number>(series.flatMap((s: any) => s.values.map((v: any) => v[0])))].sort((a, b) => a - b);
  const column = (values: [number, number][]) => {
    const known = new Map(values);
    return times.map((t) => { const v = known.get(t); return v === undefined || Number.isNaN(v) ? null : v; });
  };
  const { custom, ...defaults } = panel.fieldConfig.defaults;
  const frame = toDataFrame({
    fields: [
      { name: 'Time', type: FieldType.time, values: times },
      ...series.map((s: any) => ({ name: s.name, type: FieldType.number, values: column(s.values),
        config: { ...defaults, displayName: s.name, color: { mode: FieldColorModeId.PaletteClassic } } })),
    ],
  });
  frame.fields.forEach((field, n) => {
    field.state = { seriesIndex: n - 1 };
    field.display = getDisplayProcessor({ field, theme });
  });
  return frame;
}

function colorOf(frame: DataFrame, n: number): string {
  const field = frame.fields[n];
  return getFieldColorModeForField(field).getCalculator(field, theme)(0, 0);
}

function lines(captured: any, width: number, height: number) {
  const frame = frameOf(captured);
  const { custom, unit, min, max } = captured.panel.fieldConfig.defaults;
  const mode = custom.stacking?.mode;
  const columns = frame.fields.slice(1).map((f) => f.values as (number | null)[]);
  let shown = columns;
  if (mode) {
    const totals = frame.fields[0].values.map((_: any, i: number) => columns.reduce((sum, c) => sum + (c[i] ?? 0), 0));
    const sum = frame.fields[0].values.map(() => 0);
    shown = columns.map((c) => c.map((v, i) => (sum[i] += mode === 'percent' ? (totals[i] ? (v ?? 0) / totals[i] : 0) : v ?? 0)));
  }
  const builder = new UPlotConfigBuilder();
  builder.addScale({ scaleKey: 'x', isTime: true, orientation: 0, direction: 1, range: () => [CAPTURED.from, CAPTURED.to] } as any);
  builder.addScale({ scaleKey: 'y', orientation: 1, direction: 1, min: mode === 'percent' ? 0 : min, max: mode === 'percent' ? 1 : max } as any);
  builder.addAxis({ scaleKey: 'x', isTime: true, placement: 'bottom', theme, timeZone: 'utc' } as any);
  const display = getDisplayProcessor({ field: { type: FieldType.number, config: { unit: mode === 'percent' ? 'percentunit' : unit } }, theme });
  builder.addAxis({ scaleKey: 'y', placement: 'left', theme, formatValue: (v: number) => { const d = display(v); return `${d.text}${d.suffix ?? ''}`; } } as any);
  // The highest of a stack first, so that the lower ones are drawn over it.
  const order = shown.map((_, n) => n);
  if (mode) order.reverse();
  order.forEach((n) => builder.addSeries({
    scaleKey: 'y', theme, lineColor: colorOf(frame, n + 1), lineWidth: custom.lineWidth + 0.5, fillOpacity: mode ? 70 : custom.fillOpacity, show: true,
    drawStyle: 'line', lineInterpolation: 'linear', showPoints: 'never', spanNulls: false, pxAlign: true,
  } as any));
  const items = frame.fields.slice(1).map((f, n) => ({ label: f.name, color: colorOf(frame, n + 1), yAxis: 1 }));
  const legend = h(VizLayout.Legend as any, { placement: 'bottom' }, h(VizLegend as any, { items, placement: 'bottom', displayMode: 'list' }));
  return h(VizLayout as any, { width, height, legend }, (w: number, hh: number) =>
    h(UPlotChart as any, { data: [frame.fields[0].values, ...order.map((n) => shown[n])], config: builder, width: w, height: hh }));
}

function bars(captured: any, width: number, height: number) {
  const frame = frameOf(captured);
  const each = frame.fields.slice(1);
  return h('div', {}, each.map((field) => {
    const last = [...field.values].reverse().find((v) => v !== null) ?? 0;
    field.config.color = { mode: FieldColorModeId.Thresholds };
    const value = { ...getDisplayProcessor({ field, theme })(last), title: field.name };
    return h(BarGauge as any, { key: field.name, value, field: field.config, display: getDisplayProcessor({ field, theme }), theme, width,
      height: Math.floor(height / each.length) - 3, orientation: 'horizontal', displayMode: 'basic', itemSpacing: 4, lcdCellWidth: 12 });
  }));
}

function Picture({ captured }: any) {
  const { title, description, type } = captured.panel;
  return h(PanelChrome as any, { title, description, width: WIDTH, height: HEIGHT, loadingState: LoadingState.Done },
    (w: number, hh: number) => (type === 'bargauge' ? bars : lines)(captured, w, hh));
}

function Pictures() {
  return h(ThemeContext.Provider, { value: theme },
    h('div', { style: { display: 'grid', gridTemplateColumns: `${WIDTH}px ${WIDTH}px`, gap: 8, padding: 8, background: theme.colors.background.canvas,
      fontFamily: 'Inter, Helvetica, Arial, sans-serif', fontSize: 14, color: theme.colors.text.primary, width: 2 * WIDTH + 8 } },
      CAPTURED.panels.slice(FIRST, LAST + 1).map((captured: any, n: number) => h(Picture, { key: n, captured }))));
}
createRoot(document.getElementById('root')!).render(h(Pictures));
