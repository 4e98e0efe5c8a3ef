//! What people watch: the scrape, what is pushed to a collector, rules, dashboards.

mod otlp;
mod receiver;
mod scrape;
