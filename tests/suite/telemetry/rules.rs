//! Rules and dashboards as files: they are right by their own tools, and each alert is in the runbook.

use std::path::Path;
use std::process::Command;

const INFRA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../infra");

fn runs(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).current_dir(Path::new(INFRA).join("prometheus")).output();
    let output = output.unwrap_or_else(|e| panic!("{program} (`make setup` installs it): {e}"));
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success(), "{program} {args:?}:\n{said}");
}

/// The configuration and the rules are what Prometheus takes; each alert fires when it should and not when it should not.
/// Seen to fail with a jump that is not compared with its own past.
#[test]
fn the_rules_pass_their_own_tests() {
    runs("promtool", &["check", "config", "prometheus.yml"]);
    runs("promtool", &["test", "rules", "dedup.test.yml"]);
}

/// The dashboards are what their one source writes, and keep its rules (units, descriptions, variables, no averaged ratios).
/// Seen to fail with a panel that was changed in the JSON only.
#[test]
fn the_dashboards_are_what_their_source_writes() {
    runs("python3", &["../grafana/build.py", "--check"]);
}

/// Each alert has its paragraph in the operator's page, its `runbook_url` leads there, and each has a case in which it fires.
/// Seen to fail without a paragraph, with one of no alert, with a `runbook_url` that leads elsewhere, and with no case but one that stays quiet.
#[test]
fn each_alert_has_a_paragraph_and_cases() {
    let read = |file: &str| std::fs::read_to_string(Path::new(INFRA).join(file)).unwrap();
    let (alerts, page, cases) = (read("prometheus/dedup.alerts.yml"), read("README.md"), read("prometheus/dedup.test.yml"));
    let mut names = 0;
    for name in alerts.lines().filter_map(|l| l.trim().strip_prefix("- alert: ")) {
        names += 1;
        assert!(page.contains(&format!("\n#### {name}\n")), "{name} is not in the runbook");
        assert!(alerts.contains(&format!("runbook_url: infra/README.md#{}\n", name.to_lowercase())), "{name}");
        let asked = format!("alertname=\"{name}\"");
        let case = |c: &str| c.lines().next().is_some_and(|expr| expr.contains(&asked)) && !c.contains("exp_samples: []");
        assert!(cases.split("- expr: ").any(case), "{name} has no case in which it fires");
    }
    assert!(names >= 20, "{names} alerts");
    for heading in page.lines().filter_map(|l| l.strip_prefix("#### Dedup")) {
        assert!(alerts.contains(&format!("- alert: Dedup{heading}\n")), "the runbook has Dedup{heading}, which is no alert");
    }
}
