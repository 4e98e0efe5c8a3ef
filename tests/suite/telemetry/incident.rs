//! The demo's incident as an operator sees it: the alert fires in a real Prometheus, and every query of every dashboard and rule has data.

use std::time::Duration;

use dedup_testbed::wait_until;
use serde_json::Value;

use crate::api::http;
use crate::harness::{dedup_bin, run};

const DASHBOARDS: [(&str, &str); 5] = [
    ("overview", include_str!("../../../infra/grafana/dashboards/overview.json")),
    ("region", include_str!("../../../infra/grafana/dashboards/region.json")),
    ("topic", include_str!("../../../infra/grafana/dashboards/topic.json")),
    ("tiers", include_str!("../../../infra/grafana/dashboards/tiers.json")),
    ("service", include_str!("../../../infra/grafana/dashboards/service.json")),
];

async fn ask(prometheus: &str, path: &str, query: &[(&str, &str)]) -> Result<Value, String> {
    let url = reqwest::Url::parse_with_params(&format!("{prometheus}/api/v1/{path}"), query).unwrap();
    let answer = http().get(url).send().await.map_err(|e| e.to_string())?;
    let body: Value = serde_json::from_slice(&answer.bytes().await.map_err(|e| e.to_string())?).map_err(|e| e.to_string())?;
    if body["status"] == "success" { Ok(body["data"].clone()) } else { Err(body.to_string()) }
}

/// What the query gives; it must parse and give something.
async fn data(prometheus: &str, query: &str) -> Result<Vec<Value>, String> {
    let found = ask(prometheus, "query", &[("query", query)]).await.map_err(|e| format!("{query}: {e}"))?;
    let found = found["result"].as_array().cloned().unwrap_or_default();
    if found.is_empty() { Err(format!("{query}: no data")) } else { Ok(found) }
}

/// A query as Grafana would send it with one region, all of the rest.
fn filled(query: &str) -> String {
    let values =
        [("$__rate_interval", "10s"), ("$__range", "1m"), ("$region", "eu|us|ap"), ("$instance", ".*"), ("$topic", ".*"), ("$home", ".*")];
    let query = values.iter().fold(query.to_owned(), |query, (name, value)| query.replace(name, value));
    assert!(!query.contains('$'), "a variable nobody knows: {query}");
    query
}

/// Every query of a dashboard: panels, variables, annotations.
fn queries(text: &str) -> Vec<String> {
    let board: Value = serde_json::from_str(text).unwrap();
    let mut found = Vec::new();
    for panel in board["panels"].as_array().unwrap() {
        found.extend(panel["targets"].as_array().into_iter().flatten().map(|t| filled(t["expr"].as_str().unwrap())));
    }
    for variable in board["templating"]["list"].as_array().unwrap().iter().filter(|v| v["type"] == "query") {
        // label_values(METRIC, LABEL): the label must have values.
        let query = variable["query"]["query"].as_str().unwrap();
        let (metric, label) = query.strip_prefix("label_values(").unwrap().strip_suffix(')').unwrap().rsplit_once(", ").unwrap();
        found.push(format!("count by ({label}) ({})", filled(metric)));
    }
    found.extend(board["annotations"]["list"].as_array().unwrap().iter().map(|a| filled(a["expr"].as_str().unwrap())));
    found
}

/// `dedup demo --incident` starts Prometheus with the rules; when the clients of one region retry heavily, the alert for that region fires,
/// and for no other. Then every query of every panel, variable, annotation and recording rule gives data, and no rule is in trouble.
#[test]
fn the_incident_fires_and_every_query_has_data() {
    run(async {
        let file = std::env::temp_dir().join(format!("dedup-incident-{}.json", std::process::id()));
        let mut demo = tokio::process::Command::new(dedup_bin())
            .args(["demo", "--incident", "--seconds", "0", "--rate", "400", "--instances", "2", "--ready-file"])
            .arg(&file)
            .stdout(std::process::Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let ready: Value = wait_until("the demo is ready", Duration::from_secs(60), || async {
            let text = std::fs::read_to_string(&file).map_err(|e| e.to_string())?;
            serde_json::from_str(&text).map_err(|e| e.to_string())
        })
        .await;
        let prometheus = ready["prometheus"].as_str().expect("Prometheus is installed (`make setup`)").to_owned();
        let firing = wait_until("the alert", Duration::from_secs(140), || async {
            let alerts = ask(&prometheus, "alerts", &[]).await?;
            let of_jump = |a: &&Value| a["labels"]["alertname"] == "DedupDuplicateRateJump" && a["state"] == "firing";
            let firing: Vec<Value> = alerts["alerts"].as_array().unwrap().iter().filter(of_jump).map(|a| a["labels"].clone()).collect();
            if firing.is_empty() { Err(format!("{alerts}")) } else { Ok(firing) }
        })
        .await;
        assert!(firing.iter().all(|labels| labels["region"] == "eu"), "{firing:?}");

        // The past that some queries compare with is half a minute away.
        let all: Vec<(&str, String)> = DASHBOARDS.iter().flat_map(|(name, text)| queries(text).into_iter().map(|q| (*name, q))).collect();
        assert!(all.len() > 80, "{} queries", all.len());
        let trouble = wait_until("every query to have data", Duration::from_secs(50), || async {
            let mut trouble = Vec::new();
            for (name, query) in &all {
                if let Err(why) = data(&prometheus, query).await {
                    trouble.push(format!("{name}: {why}"));
                }
            }
            if trouble.is_empty() { Ok(trouble) } else { Err(trouble.join("\n")) }
        });
        trouble.await;
        let rules = ask(&prometheus, "rules", &[]).await.unwrap();
        let rules: Vec<&Value> = rules["groups"].as_array().unwrap().iter().flat_map(|g| g["rules"].as_array().unwrap()).collect();
        assert!(rules.len() > 40, "{} rules", rules.len());
        for rule in rules {
            assert_eq!(rule["health"], "ok", "{rule}");
            if rule["type"] == "recording" {
                data(&prometheus, rule["name"].as_str().unwrap()).await.unwrap();
            }
        }
        // What the overview shows of it: eu repeats far more than the others.
        let rate = |region: &str| format!("region:dedup_duplicate:ratio_rate5m{{region=\"{region}\"}}");
        let value = |found: Vec<Value>| found[0]["value"][1].as_str().unwrap().parse::<f64>().unwrap();
        let eu = value(data(&prometheus, &format!("max_over_time({}[30s])", rate("eu"))).await.unwrap());
        let us = value(data(&prometheus, &format!("min_over_time({}[30s])", rate("us"))).await.unwrap());
        assert!(eu > 0.8 && us < eu, "eu {eu}, us {us}");

        let pid = demo.id().unwrap().to_string();
        assert!(std::process::Command::new("sh").args(["-c", &format!("kill -INT {pid}")]).status().unwrap().success());
        let status = tokio::time::timeout(Duration::from_secs(60), demo.wait()).await.unwrap().unwrap();
        assert!(status.success(), "the consumers' own books are right: {status}");
    });
}
