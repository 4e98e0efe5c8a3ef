//! What people watch: the scrape, what is pushed to a collector, rules, dashboards.

mod incident;
mod otlp;
mod receiver;
mod rules;
mod scrape;
