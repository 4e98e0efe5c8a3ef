#!/usr/bin/env python3
"""Asks a running Prometheus for what some panels show; writes their data as JSON.

    capture.py http://127.0.0.1:9090 out.json [SECONDS]
"""

import json
import math
import pathlib
import sys
import time
import urllib.parse
import urllib.request

BOARDS = pathlib.Path(__file__).resolve().parent.parent / "dashboards"
# Dashboard, title of the panel, chosen topic: what the pictures show. The demo's emails are those whose duplicates jump most clearly; only its clicks
# are repeated late enough for windows to differ.
PANELS = [
    ("overview", "Duplicate rate by region and topic", ""), ("overview", "Decisions per second by region", ""),
    ("overview", "Verdicts", ""), ("overview", "Tiers", ""),
    ("topic", "Duplicates for each first, now and usual", "emails"), ("topic", "A window of N would have missed", "clicks"),
    ("overview", "Time to answer, 99 of 100, by deepest tier", ""), ("overview", "Round trips between regions", ""),
    ("service", "Processor time", ""), ("service", "Calls to homes per second", ""),
]
FILL = {"$__rate_interval": "10s", "$__range": "2m", "$region": ".*", "$instance": ".*", "$home": ".*"}


def main():
    prometheus, out = sys.argv[1], sys.argv[2]
    seconds = int(sys.argv[3]) if len(sys.argv) > 3 else 110
    end, captured = time.time(), []
    for board, title, topic in PANELS:
        panel = next(p for p in json.loads((BOARDS / f"{board}.json").read_text())["panels"] if p["title"] == title)
        series = []
        for target in panel["targets"]:
            expr = target["expr"]
            for name, value in (FILL | {"$topic": topic or ".*"}).items():
                expr = expr.replace(name, value)
            query = urllib.parse.urlencode({"query": expr, "start": end - seconds, "end": end, "step": 1})
            with urllib.request.urlopen(f"{prometheus}/api/v1/query_range?{query}") as answer:
                found = json.load(answer)["data"]["result"]
            for one in found:
                legend = target["legendFormat"]
                for name, value in one["metric"].items():
                    legend = legend.replace("{{" + name + "}}", value)
                series.append({"name": legend, "values": [[t * 1000, float(v)] for t, v in one["values"] if math.isfinite(float(v))]})
        captured.append({"panel": panel | {"title": f"{title}: {topic}" if topic else title}, "series": series})
    pathlib.Path(out).write_text(json.dumps({"from": (end - seconds) * 1000, "to": end * 1000, "panels": captured}))
    print(f"{len(captured)} panels, {sum(len(c['series']) for c in captured)} series")


main()
