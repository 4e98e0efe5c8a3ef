#!/usr/bin/env python3
"""Writes the dashboards: dashboards/*.json. This file is their one source; edit it and run it, then commit both.

    python3 infra/grafana/build.py            write the files
    python3 infra/grafana/build.py --check    exit code 1 if a file is not what this would write, or breaks a rule of lint() below

Grafana's classic JSON (schema 39), which Grafana 10.3 and later read. Standard library only.
"""

import json
import os
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE / "dashboards"
# Where people read the operator's page; set it to your own copy and build again.
RUNBOOK = os.environ.get("RUNBOOK_URL", "https://example.org/dedup/infra/README.md")
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

# What every query is narrowed to.
R = 'region=~"$region", instance=~"$instance"'
RT = R + ', topic=~"$topic"'
Q = 'op=~"check|claim"'  # questions
RATE = "[$__rate_interval]"

GREEN, YELLOW, RED = "green", "yellow", "red"


def rate(metric, labels, by):
    return f"sum by ({by}) (rate({metric}{{{labels}}}{RATE}))"


def ratio(part, whole):
    """A quotient of sums; nothing where there is no traffic."""
    return f"{part} / ({whole} > 0)"


def quantile(q, metric, labels, by):
    return f"histogram_quantile({q}, sum by ({by}, le) (rate({metric}_bucket{{{labels}}}{RATE})))"


def duplicate_ratio(by, labels=RT):
    dup = rate("dedup_decisions_total", f'{labels}, {Q}, verdict="duplicate"', by)
    return ratio(dup, rate("dedup_decisions_total", f'{labels}, {Q}, verdict=~"first|duplicate"', by))


def panel(kind, title, description, queries, unit, w=8, h=8, steps=None, **extra):
    """queries: (expression, legend) or (expression, legend, "table")."""
    targets = []
    for n, (expr, legend, *mode) in enumerate(queries):
        target = {"refId": chr(65 + n), "datasource": DATASOURCE, "expr": expr, "legendFormat": legend, "range": True, "instant": False}
        if mode or kind in ("stat", "gauge", "bargauge", "table"):
            target |= {"range": False, "instant": True}
        if mode == ["table"] or kind == "table":
            target["format"] = "table"
        if mode == ["heatmap"]:
            target |= {"range": True, "instant": False, "format": "heatmap"}
        targets.append(target)
    thresholds = [{"color": color, "value": value} for color, value in (steps or [(GREEN, None)])]
    defaults = {"unit": unit, "thresholds": {"mode": "absolute", "steps": thresholds}}
    options = {}
    if kind == "timeseries":
        defaults["custom"] = {"fillOpacity": 10, "lineWidth": 1, "showPoints": "never", "spanNulls": False,
                              "thresholdsStyle": {"mode": "line" if steps else "off"}}
        if extra.pop("stack", False):
            # Without it the axis may begin above zero, and the lowest of a stack looks smaller than it is.
            defaults |= {"min": 0}
            defaults["custom"] |= {"stacking": {"mode": "normal", "group": "A"}, "fillOpacity": 40}
        if extra.pop("share", False):
            defaults["custom"] |= {"stacking": {"mode": "percent", "group": "A"}, "fillOpacity": 40}
        options = {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True}, "tooltip": {"mode": "multi", "sort": "desc"}}
    elif kind in ("stat", "gauge", "bargauge"):
        options = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
        if kind == "stat":
            options |= {"colorMode": "value", "graphMode": "none", "textMode": "auto", "justifyMode": "auto"}
        if kind == "bargauge":
            options |= {"orientation": "horizontal", "displayMode": "basic"}
    elif kind == "table":
        options = {"showHeader": True}
        defaults["custom"] = {"align": "auto", "cellOptions": {"type": "color-text"}}
    if "max" in extra:
        defaults["max"] = extra.pop("max")
    if "min" in extra:
        defaults["min"] = extra.pop("min")
    one = {"type": kind, "title": title, "description": description, "datasource": DATASOURCE, "targets": targets,
           "fieldConfig": {"defaults": defaults, "overrides": extra.pop("overrides", [])}, "options": options, "_size": (w, h)}
    return one | extra


def row(title):
    return {"type": "row", "title": title, "collapsed": False, "panels": [], "_size": (24, 1)}


def variable(name, label, query, multi=True):
    return {"type": "query", "name": name, "label": label, "datasource": DATASOURCE, "query": {"query": query, "refId": "v"},
            "refresh": 2, "sort": 1, "multi": multi, "includeAll": multi, "allValue": ".*" if multi else None,
            "current": {"text": "All", "value": "$__all"} if multi else {}, "hide": 0, "options": [], "regex": "", "skipUrlSync": False}


VARIABLES = {
    "region": ("Region", "label_values(dedup_tier_up, region)"),
    "instance": ("Instance", 'label_values(dedup_tier_up{region=~"$region"}, instance)'),
    "home": ("Home", 'label_values(dedup_tier_up{region=~"$region", tier="warm"}, home_region)'),
    "topic": ("Topic", 'label_values(dedup_decisions_total{region=~"$region"}, topic)'),
}
UIDS = {"overview": "dedup-overview", "region": "dedup-region", "topic": "dedup-topic", "tiers": "dedup-tiers", "service": "dedup-service"}
TITLES = {"overview": "dedup / Overview", "region": "dedup / Region", "topic": "dedup / Topic", "tiers": "dedup / Tiers and segments",
          "service": "dedup / Service and database"}


def links(name):
    to = [{"type": "link", "title": TITLES[n].split(" / ")[1], "url": f"/d/{uid}", "includeVars": True, "keepTime": True, "targetBlank": False,
           "icon": "dashboard", "asDropdown": False, "tags": [], "tooltip": ""} for n, uid in UIDS.items() if n != name]
    return to + [{"type": "link", "title": "Runbook", "url": RUNBOOK, "includeVars": False, "keepTime": False, "targetBlank": True,
                  "icon": "doc", "asDropdown": False, "tags": [], "tooltip": "What each alert means and what to do"}]


def drill(title, uid, params):
    return {"links": [{"title": title, "url": f"/d/{uid}?{params}&${{__url_time_range}}", "targetBlank": False}]}


def dashboard(name, description, variables, panels):
    x = y = height = 0
    placed = []
    for n, one in enumerate(panels, 1):
        w, h = one.pop("_size")
        if x + w > 24 or one["type"] == "row":
            x, y, height = 0, y + height, 0
        placed.append({"id": n, "gridPos": {"x": x, "y": y, "w": w, "h": h}} | one)
        x, height = x + w, max(height, h)
    source = {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus", "current": {"text": "", "value": ""}, "hide": 0,
              "includeAll": False, "multi": False, "options": [], "refresh": 1, "regex": "", "skipUrlSync": False}
    return {
        "uid": UIDS[name], "title": TITLES[name], "description": description, "id": None, "schemaVersion": 39, "version": 1, "editable": False,
        "tags": ["dedup"], "graphTooltip": 1, "refresh": "30s", "time": {"from": "now-1h", "to": "now"}, "timezone": "", "fiscalYearStartMonth": 0,
        "weekStart": "", "liveNow": False, "timepicker": {}, "links": links(name), "annotations": {"list": [alerts_annotation()]},
        "templating": {"list": [source] + [variable(v, *VARIABLES[v]) for v in variables]}, "panels": placed,
    }


def alerts_annotation():
    return {"name": "Alerts", "datasource": DATASOURCE, "enable": True, "hide": False, "iconColor": "red",
            "expr": 'max by (alertname, region, home_region, topic) (ALERTS{alertname=~"Dedup.*", alertstate="firing"})',
            "titleFormat": "{{alertname}}", "textFormat": "{{region}} {{home_region}} {{topic}}", "step": "60s"}


LATENCY = [(GREEN, None), (YELLOW, 0.05), (RED, 0.25)]
BUDGET = [(GREEN, None), (YELLOW, 0.0005), (RED, 0.001)]
UP = [(RED, None), (GREEN, 1)]
ALERTS = 'max by (alertname, severity, region, home_region, topic) (ALERTS{alertname=~"Dedup.*", alertstate="firing"})'
DECIDED = f"{R}, {Q}"
AGE = "dedup_duplicate_age_seconds"


def overview():
    total = rate("dedup_decisions_total", DECIDED + ', topic=~"$topic"', "region")
    return dashboard("overview", "All regions at a glance: who duplicates, and whether a tier fails.", ["region", "instance", "topic"], [
        panel("stat", "Decisions per second", "Checks and claims that got a verdict, all chosen regions and topics together.",
              [(f"sum(rate(dedup_decisions_total{{{DECIDED}, topic=~\"$topic\"}}{RATE}))", "decisions")], "reqps", 4, 4),
        panel("stat", "Duplicate rate", "Duplicates among first and duplicate. Replays of a request id and claims in progress do not count.",
              [(ratio(f"sum(rate(dedup_decisions_total{{{RT}, {Q}, verdict=\"duplicate\"}}{RATE}))",
                      f"sum(rate(dedup_decisions_total{{{RT}, {Q}, verdict=~\"first|duplicate\"}}{RATE}))"), "duplicate rate")],
              "percentunit", 4, 4),
        panel("stat", "Undecided", "Questions without a verdict (503) among all. The error budget is 1 of 1,000.",
              [(ratio(f"sum(rate(dedup_undecided_total{{{R}}}{RATE}))",
                      f"sum(rate(dedup_undecided_total{{{R}}}{RATE})) + sum(rate(dedup_decisions_total{{{R}}}{RATE}))"), "undecided")],
              "percentunit", 4, 4, BUDGET),
        panel("stat", "Homes that answer", "Pairs of region and home with a connection, of all. Red: keys of a home get no verdict somewhere.",
              [('sum(max by (region, home_region) (dedup_tier_up{tier="warm", ' + R + '})) / count(max by (region, home_region) (dedup_tier_up{tier="warm", ' + R + "}))",
                "homes up")], "percentunit", 4, 4, UP),
        panel("stat", "Redis that answers", "Regions whose Redis answers, of those that have one. Without it verdicts stay the same and cost more.",
              [(f'sum(max by (region) (dedup_tier_up{{tier="hot", {R}}})) / count(max by (region) (dedup_tier_up{{tier="hot", {R}}}))', "Redis up")],
              "percentunit", 4, 4, [(YELLOW, None), (GREEN, 1)]),
        panel("stat", "Firing alerts", "Alerts of dedup that fire now; the list is below, the runbook is linked above.",
              [(f"count({ALERTS}) or vector(0)", "alerts")], "short", 4, 4, [(GREEN, None), (RED, 1)]),
        panel("timeseries", "Duplicate rate by region and topic", "Duplicates among first and duplicate, by serving region and topic. A jump is a retry storm; a fall to nothing while there is traffic means that repeats are no longer recognised.",
              [(duplicate_ratio("region, topic"), "{{region}} {{topic}}")], "percentunit", 12, 9, min=0, max=1,
              ) | {},
        panel("timeseries", "Decisions per second by region", "Checks and claims with a verdict, by serving region.",
              [(total, "{{region}}")], "reqps", 12, 9),
        panel("timeseries", "Verdicts", "What was answered: first, duplicate, in_progress (somebody is at work), mismatch (same key, other payload), replayed (the same request asked again).",
              [(rate("dedup_decisions_total", f"{RT}, {Q}", "verdict"), "{{verdict}}")], "reqps", 8, 8, stack=True),
        panel("timeseries", "Tiers", "Which tier answered: local and hot cost no call to a home, warm does.",
              [(rate("dedup_decisions_total", f"{RT}, {Q}", "tier"), "{{tier}}")], "reqps", 8, 8, share=True),
        panel("timeseries", "Time to answer, 99 of 100, by deepest tier", "99 of 100 requests were answered faster; by the deepest tier a request needed.",
              [(quantile(0.99, "dedup_decision_duration_seconds", R, "tier"), "{{tier}}")], "s", 8, 8, LATENCY),
        panel("timeseries", "Round trips between regions", "Half of the calls from a serving region to a home were faster. Across regions this is the distance; at home the disk.",
              [(quantile(0.5, "dedup_home_roundtrip_seconds", R, "region, home_region"), "{{region}} → {{home_region}}")], "s", 8, 8),
        panel("timeseries", "Undecided by home and reason", "Questions that got 503, by the key's home and the reason.",
              [(rate("dedup_undecided_total", R, "home_region, code"), "{{home_region}} {{code}}")], "reqps", 8, 8, [(GREEN, None), (RED, 1)]),
        panel("table", "Duplicate rate now against its past", "Each region and topic: the rate of the last five minutes, and of the day that ended an hour ago (recording rules). No past, no comparison.",
              [('region_topic:dedup_duplicate:ratio_rate5m{region=~"$region", topic=~"$topic"}', "now"), ('region_topic:dedup_duplicate:ratio_past{region=~"$region", topic=~"$topic"}', "past")],
              "percentunit", 8, 8, transformations=[{"id": "merge", "options": {}}]),
        panel("table", "Alerts", "Alerts of dedup that fire now. What each means and what to do: the runbook.",
              [(ALERTS, "")], "short", 24, 6, transformations=[{"id": "organize", "options": {"excludeByName": {"Time": True, "Value": True}}}]),
    ])


def region():
    return dashboard("region", "One region: what it is asked, by whom it is decided, and its own stores.", ["region", "instance", "topic"], [
        panel("timeseries", "Decisions per second by instance", "Checks and claims with a verdict. Instances of one region should carry about the same.",
              [(rate("dedup_decisions_total", DECIDED, "region, instance"), "{{instance}}")], "reqps"),
        panel("timeseries", "Decisions per second by topic", "Checks and claims with a verdict, by topic.",
              [(rate("dedup_decisions_total", f"{RT}, {Q}", "topic"), "{{topic}}")], "reqps", stack=True),
        panel("timeseries", "Decisions per second by home", "Where the keys asked for have their home: other regions' homes cost a trip across.",
              [(rate("dedup_decisions_total", f"{RT}, {Q}", "home_region"), "{{home_region}}")], "reqps", stack=True),
        panel("timeseries", "Duplicate rate by home and topic", "Duplicates among first and duplicate, by the key's home and the topic.",
              [(duplicate_ratio("home_region, topic"), "{{home_region}} {{topic}}")], "percentunit", 12, min=0, max=1),
        panel("timeseries", "Duplicates answered without a call to a home", "Part of the duplicates that memory or Redis answered.",
              [(ratio(rate("dedup_decisions_total", f'{R}, {Q}, verdict="duplicate", tier=~"local|hot"', "region"),
                      rate("dedup_decisions_total", f'{R}, {Q}, verdict="duplicate"', "region")), "{{region}}")], "percentunit", 12, min=0, max=1),
        panel("timeseries", "Time to answer by operation", "99 of 100 requests were answered faster, by operation.",
              [(quantile(0.99, "dedup_decision_duration_seconds", R, "op"), "{{op}}")], "s", 8, 8, LATENCY),
        panel("timeseries", "Time to answer, half and 99 of 100", "How long requests took over all operations: half were faster, 99 of 100 were faster.",
              [(quantile(0.5, "dedup_decision_duration_seconds", R, "region"), "{{region}} half"),
               (quantile(0.99, "dedup_decision_duration_seconds", R, "region"), "{{region}} 99 of 100")], "s", 8, 8, LATENCY),
        panel("timeseries", "Round trip to each home", "99 of 100 calls to a home were faster.",
              [(quantile(0.99, "dedup_home_roundtrip_seconds", R, "region, home_region"), "{{region}} → {{home_region}}")], "s", 8, 8),
        panel("timeseries", "Ends of claims", "Completions, releases and extensions by how they ended. lease_lost: too late, the claim is somebody else's.",
              [(rate("dedup_decisions_total", f'{RT}, op=~"complete|release|extend"', "op, verdict"), "{{op}} {{verdict}}")], "reqps"),
        panel("timeseries", "Take-overs and lost leases", "Leases that lapsed and were taken over, and ends that came after that. Both should be rare.",
              [(rate("dedup_lease_takeovers_total", R, "region"), "{{region}} taken over"), (rate("dedup_lease_lost_total", R, "region"), "{{region}} lost")], "ops"),
        panel("timeseries", "Undecided by reason", "Questions that got 503, by the reason.",
              [(rate("dedup_undecided_total", R, "region, code"), "{{region}} {{code}}")], "reqps", 8, 8, [(GREEN, None), (RED, 1)]),
        panel("timeseries", "Error budget used", "Undecided among all, over 1 hour and 6 hours (recording rules). 0.1 % is the budget.",
              [('region:dedup_undecided:ratio_rate1h{region=~"$region"}', "{{region}} 1 h"), ('region:dedup_undecided:ratio_rate6h{region=~"$region"}', "{{region}} 6 h")],
              "percentunit", 8, 8, BUDGET),
        panel("timeseries", "Homes up", "Part of the last hour in which each home answered this region (recording rule).",
              [('region_home:dedup_home_up:avg1h{region=~"$region"}', "{{region}} → {{home_region}}")], "percentunit", 8, 8, min=0, max=1),
        panel("timeseries", "Answers by HTTP status", "Answers below /v1 by status. 4xx are callers' mistakes, 503 is undecided.",
              [(rate("dedup_http_responses_total", R, "status"), "{{status}}")], "reqps"),
    ])


def topic():
    windows = [(60, "1 minute"), (900, "15 minutes"), (3600, "1 hour"), (21600, "6 hours"), (86400, "1 day"), (259200, "3 days"), (604800, "7 days"), (2592000, "30 days")]
    dup = f"{AGE}_bucket{{{RT}"
    missed = [(ratio(f'(sum(increase({AGE}_count{{{RT}}}[$__range])) - sum(increase({dup}, le="{s}"}}[$__range])))', f"sum(increase({AGE}_count{{{RT}}}[$__range]))"), word)
              for s, word in windows]
    return dashboard("topic", "One topic: how much of it is repeated, how late repeats come, and which window it needs.", ["region", "instance", "topic"], [
        panel("timeseries", "Duplicate rate by region", "Duplicates among first and duplicate of the chosen topics, by serving region.",
              [(duplicate_ratio("region, topic"), "{{region}} {{topic}}")], "percentunit", 12, min=0, max=1),
        panel("timeseries", "Duplicates for each first, now and usual", "Duplicates per first over five minutes, and over the day that ended an hour ago (recording rules). The alert fires at three times the usual.",
              [('region_topic:dedup_duplicate:rate5m{region=~"$region", topic=~"$topic"} / (region_topic:dedup_first:rate5m > 0)', "{{region}} {{topic}} now"),
               ('region_topic:dedup_duplicate:rate_past{region=~"$region", topic=~"$topic"} / (region_topic:dedup_first:rate_past > 0)', "{{region}} {{topic}} usual")], "short", 12),
        panel("timeseries", "Verdicts", "What was answered for the chosen topics.",
              [(rate("dedup_decisions_total", f"{RT}, {Q}", "verdict"), "{{verdict}}")], "reqps", stack=True),
        panel("timeseries", "Mismatches", "The same key with another fingerprint: a producer reuses ids, or the fingerprint covers something that changes between repeats.",
              [(rate("dedup_decisions_total", f'{RT}, verdict="mismatch"', "region, topic"), "{{region}} {{topic}}")], "reqps", 8, 8, [(GREEN, None), (RED, 1)]),
        panel("timeseries", "Attempts again", "Claims that found somebody at work (in_progress), and requests asked again with the same id (replayed): callers' impatience.",
              [(rate("dedup_decisions_total", f'{RT}, verdict=~"in_progress|replayed"', "op, verdict"), "{{op}} {{verdict}}")], "reqps"),
        panel("heatmap", "How late duplicates come", "Age of duplicates: how long after the first the repeat came. The bounds are windows one may choose.",
              [(f"sum by (le) (increase({AGE}_bucket{{{RT}}}{RATE}))", "{{le}}", "heatmap")], "short", 12, 9,
              options={"calculate": False, "yAxis": {"unit": "s"}, "cellGap": 1, "legend": {"show": True}, "tooltip": {"mode": "single", "yHistogram": True},
                       "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64}}),
        panel("bargauge", "A window of N would have missed", "Part of the duplicates in the chosen time range that came later than N after their first: with a window of N they would have been processed again. Only repeats that the present window caught are known.",
              missed, "percentunit", 12, 9, [(GREEN, None), (YELLOW, 0.0001), (RED, 0.001)], min=0, max=1),
        panel("timeseries", "Within what time 99.9 % of the duplicates came", "Age that 999 of 1,000 duplicates stayed below. Near the topic's window: make it longer.",
              [(quantile(0.999, AGE, RT, "topic"), "{{topic}}")], "s", 12),
        panel("timeseries", "Ends of claims", "Completions, releases and extensions of the chosen topics.",
              [(rate("dedup_decisions_total", f'{RT}, op=~"complete|release|extend"', "op, verdict"), "{{op}} {{verdict}}")], "reqps", 12),
        panel("timeseries", "Tiers", "Which tier answered.", [(rate("dedup_decisions_total", f"{RT}, {Q}", "tier"), "{{tier}}")], "reqps", 12, share=True),
        panel("timeseries", "Undecided", "Questions of the chosen topics that got 503.",
              [(rate("dedup_undecided_total", RT, "home_region, code"), "{{home_region}} {{code}}")], "reqps", 12, 8, [(GREEN, None), (RED, 1)]),
    ])


def tiers():
    store = f"{R}, home_region=~\"$home\""
    def most(metric, by):
        return f"max by ({by}) ({metric}{{{store}}})"
    return dashboard("tiers", "The tiers: memory, Redis, and the segments in each home.", ["region", "instance", "home"], [
        row("Tiers"),
        panel("timeseries", "Tier up", "1 while a tier answers: homes (warm), Redis (hot), memory (local). The lowest of a region's instances.",
              [(f"min by (region, tier, home_region) (dedup_tier_up{{{R}}})", "{{region}} {{tier}} {{home_region}}")], "short", 8, 8, UP, min=0, max=1),
        panel("timeseries", "Share of decisions by tier", "Which tier answered checks and claims.",
              [(rate("dedup_decisions_total", DECIDED, "tier"), "{{tier}}")], "reqps", share=True),
        panel("timeseries", "Failed calls", "Failed or timed-out calls to Redis (hot) and to homes (warm).",
              [(rate("dedup_tier_errors_total", R, "region, tier, home_region"), "{{region}} {{tier}} {{home_region}}")], "ops", 8, 8, [(GREEN, None), (RED, 1)]),
        panel("timeseries", "Records in memory, keys in Redis", "Entries of the local tier by instance, and keys in each region's Redis.",
              [(f'sum by (instance) (dedup_tier_entries{{{R}, tier="local"}})', "{{instance}} local"), (f'max by (region) (dedup_tier_entries{{{R}, tier="hot"}})', "{{region}} hot")], "short"),
        panel("timeseries", "Bytes by tier", "Memory of the local tier, of Redis, and size of each home's database.",
              [(f"max by (region, tier, home_region) (dedup_tier_size_bytes{{{R}}})", "{{region}} {{tier}} {{home_region}}")], "bytes"),
        panel("timeseries", "Evictions", "Records that left memory or Redis for want of room. Many, while duplicates go to the home: give them more.",
              [(rate("dedup_tier_evictions_total", R, "region, tier"), "{{region}} {{tier}}")], "ops"),
        panel("timeseries", "Back-fills left out, values not ours", "Back-fills to Redis left out because it was slow, and values in it that this deployment did not write (these should be none).",
              [(rate("dedup_hot_dropped_total", R, "region"), "{{region}} left out"), (rate("dedup_hot_forged_total", R, "region"), "{{region}} not ours")], "ops"),
        row("Filters"),
        panel("timeseries", "False positives of filters", "Part of the tests of new keys that ended in a maybe, measured; and the highest share that a loaded filter has by its keys and size. 1 % is aimed at.",
              [(rate("dedup_filter_false_positives_total", store, "home_region") + " / " + rate("dedup_filter_tests_total", store, "home_region"), "{{home_region}} measured"),
               (most("dedup_filter_estimated_fpr", "home_region"), "{{home_region}} estimated")], "percentunit", 8, 8, [(GREEN, None), (YELLOW, 0.015), (RED, 0.03)]),
        panel("timeseries", "Loaded filters", "Loaded filters of each home's sealed segments and archives, and filters that could not be loaded.",
              [(most("dedup_filters", "home_region"), "{{home_region}}"), (rate("dedup_filter_refused_total", R, "region"), "{{region}} refused per second")], "short"),
        panel("timeseries", "Bytes of filters", "Memory of the filters of all homes in an instance, and what they may take.",
              [(f"max by (region) (sum by (region, instance) (dedup_filter_size_bytes{{{R}}}))", "{{region}}"), (f"max by (region) (dedup_filter_size_max_bytes{{{R}}})", "{{region}} limit")], "bytes"),
        row("Segments"),
        panel("timeseries", "Segments by state", "Segments of each home: prepared ahead, open, sealed, frozen, cold.",
              [(most("dedup_segments", "home_region, state"), "{{home_region}} {{state}}")], "short"),
        panel("timeseries", "Rows by state", "Rows in them, as Postgres estimates (after its statistics were taken).",
              [(most("dedup_segment_rows", "home_region, state"), "{{home_region}} {{state}}")], "short", stack=True),
        panel("timeseries", "Bytes by state", "Bytes of records, results and indexes.",
              [(most("dedup_segment_size_bytes", "home_region, state"), "{{home_region}} {{state}}")], "bytes", stack=True),
        panel("timeseries", "Age of the open segment", "How long the open segment has been open; it is closed after a day. The alert comes at 26 hours.",
              [(most("dedup_open_segment_age_seconds", "home_region"), "{{home_region}}")], "s", 8, 8, [(GREEN, None), (YELLOW, 86400), (RED, 93600)]),
        panel("timeseries", "Open claims", "Claims at work, and claims whose lease lapsed and which nobody took over.",
              [(most("dedup_open_claims", "home_region, state"), "{{home_region}} {{state}}")], "short"),
        panel("timeseries", "Age of the oldest open claim", "How long ago the oldest claim at work was granted. The alert comes at 12 hours.",
              [(most("dedup_open_claim_age_seconds", "home_region"), "{{home_region}}")], "s", 8, 8, [(GREEN, None), (YELLOW, 21600), (RED, 43200)]),
    ])


def service():
    home = f"{R}, home_region=~\"$home\""
    per_key = ratio(f"sum by (instance) (rate(process_cpu_seconds_total{{{R}}}{RATE}))", rate("dedup_decisions_total", R, "instance"))
    return dashboard("service", "The processes, and their work with the homes' databases.", ["region", "instance", "home"], [
        row("Service"),
        panel("timeseries", "Processor time", "How busy an instance keeps the processors; 100 % is one of them.",
              [(rate("process_cpu_seconds_total", R, "instance"), "{{instance}}")], "percentunit"),
        panel("timeseries", "Processor time per decision", "Seconds of processor time for each decided item: larger batches make it small.",
              [(per_key, "{{instance}}")], "s"),
        panel("timeseries", "Memory", "Resident memory of each instance.", [(f"sum by (instance) (process_resident_memory_bytes{{{R}}})", "{{instance}}")], "bytes"),
        panel("timeseries", "Open files and sockets", "Open files and sockets of each instance; callers' connections are among them.",
              [(f"sum by (instance) (process_open_fds{{{R}}})", "{{instance}}")], "short"),
        panel("timeseries", "Answers by HTTP status", "Answers below /v1 by status.", [(rate("dedup_http_responses_total", R, "status"), "{{status}}")], "reqps"),
        panel("timeseries", "Topics with a label", "Topics told apart, and the limit; beyond it topics share the label other.",
              [(f"max by (region) (dedup_topics{{{R}}})", "{{region}}"), (f"max by (region) (dedup_topics_max{{{R}}})", "{{region}} limit")], "short"),
        panel("table", "Instances", "Version and start of each instance.",
              [(f'max by (instance, service_version, cloud_region, service_instance_id) (target_info{{service_name="dedup", instance=~"$instance"}})', "")], "short", 12, 8,
              transformations=[{"id": "organize", "options": {"excludeByName": {"Time": True, "Value": True}}}]),
        panel("timeseries", "Running since", "Time since the start of each instance: a fall is a restart.",
              [(f"time() - max by (instance) (process_start_time_seconds{{{R}}})", "{{instance}}")], "s", 12),
        row("Database"),
        panel("timeseries", "Calls to homes per second", "Calls, so commits, to each home.",
              [(rate("dedup_home_roundtrip_seconds_count", home, "region, home_region"), "{{region}} → {{home_region}}")], "ops"),
        panel("timeseries", "Keys in a call", "Keys that shared a call and a commit: the quotient of keys and calls. More load makes it larger, and each key cheaper.",
              [(ratio(rate("dedup_batch_size_sum", home, "region, home_region"), rate("dedup_batch_size_count", home, "region, home_region")), "{{region}} → {{home_region}}")], "short"),
        panel("timeseries", "Time of a call", "99 of 100 calls to a home were faster.",
              [(quantile(0.99, "dedup_home_roundtrip_seconds", home, "region, home_region"), "{{region}} → {{home_region}}")], "s", 8, 8, LATENCY),
        panel("timeseries", "Wait for a call", "In 99 of 100 calls the oldest question had waited less for its turn.",
              [(quantile(0.99, "dedup_pool_wait_seconds", home, "region, home_region"), "{{region}} → {{home_region}}")], "s", 8, 8, LATENCY),
        panel("timeseries", "Questions in line", "Questions that wait or are in flight; callers are told overloaded above queue_items (20,000 by default).",
              [(f"sum by (region, home_region) (dedup_home_queued{{{home}}})", "{{region}} → {{home_region}}")], "short", 8, 8, [(GREEN, None), (YELLOW, 10000), (RED, 18000)]),
        panel("timeseries", "Unknown outcomes, held keys", "Calls whose outcome is not known (asked once more with the same request id), and keys found locked by somebody's open transaction.",
              [(rate("dedup_home_unknown_outcomes_total", home, "home_region"), "{{home_region}} unknown"), (rate("dedup_held_keys_total", home, "home_region"), "{{home_region}} held")], "ops"),
        panel("timeseries", "Size of the database", "Bytes of each home's database.",
              [(f'max by (home_region) (dedup_tier_size_bytes{{{home}, tier="warm"}})', "{{home_region}}")], "bytes", 24),
    ])


def lint(name, board):
    """What every dashboard keeps to; one line for each break."""
    found = []
    if board["uid"] != UIDS[name] or board["id"] is not None or board["editable"]:
        found.append("uid, id or editable")
    names = [v["name"] for v in board["templating"]["list"]]
    if names[:1] != ["datasource"] or not {"region", "instance"} <= set(names):
        found.append("variables datasource, region and instance are needed")
    if not any(link["url"] == RUNBOOK for link in board["links"]) or len(board["links"]) != len(UIDS):
        found.append("links to the other dashboards and the runbook")
    titles = [p["title"] for p in board["panels"]]
    if len(titles) != len(set(titles)):
        found.append("two panels of one title")
    for one in board["panels"]:
        say = lambda what: found.append(f"{one['title']}: {what}")
        if one["type"] == "row":
            continue
        if len(one.get("description", "")) < 15 or not one["description"].endswith((".", ")")):
            say("no description")
        defaults = one["fieldConfig"]["defaults"]
        if not defaults.get("unit") or not defaults["thresholds"]["steps"]:
            say("no unit or thresholds")
        if one["datasource"] != DATASOURCE:
            say("a fixed data source")
        if not one["targets"]:
            say("no query")
        for target in one["targets"]:
            expr = target["expr"]
            if target["datasource"] != DATASOURCE:
                say("a fixed data source in a query")
            for window in re.findall(r"\[([^\]]*)\]", expr):
                if window not in ("$__rate_interval", "$__range"):
                    say(f"a fixed window [{window}]")
            if re.search(r"\bavg(_over_time)?\b[^(]*\([^()]*(ratio|/)", expr):
                say("an averaged ratio")
            for used in re.findall(r"\$([a-z]+)", expr.replace("$__", "")):
                if used not in names:
                    say(f"the variable {used} does not exist")
            if "instance=~" not in expr and not re.search(r"[a-z]+:dedup_|ALERTS", expr):
                say("not narrowed to the chosen instances")
    return found


def main():
    boards = {f.__name__: f() for f in (overview, region, topic, tiers, service)}
    bad = [f"{name}: {what}" for name, board in boards.items() for what in lint(name, board)]
    for name, board in boards.items():
        file, text = OUT / f"{name}.json", json.dumps(board, indent=2, ensure_ascii=False) + "\n"
        if "--check" not in sys.argv:
            OUT.mkdir(exist_ok=True)
            file.write_text(text)
        elif not file.exists() or file.read_text() != text:
            bad.append(f"{file.name} is not what build.py writes")
    if {f.name for f in OUT.glob("*.json")} != {f"{name}.json" for name in boards}:
        bad.append("another file is in dashboards/")
    print("\n".join(bad) or f"{len(boards)} dashboards, {sum(len(b['panels']) for b in boards.values())} panels", file=sys.stderr if bad else sys.stdout)
    sys.exit(1 if bad else 0)


main()
