//! A real Prometheus that scrapes engines (Debian package `prometheus`).
#![expect(clippy::disallowed_methods, reason = "a test waits by the clock")]

use std::{
    fs::{self, File},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{
    cluster::{Unavailable, end_of, free_ports, or_skip},
    engine::request,
};

/// A running Prometheus that scrapes and evaluates every second; killed when dropped.
pub(crate) struct Prometheus {
    child: Child,
    address: SocketAddr,
    dir: tempfile::TempDir,
}

impl Prometheus {
    /// Starts Prometheus with these rules, or prints the reason for skipping to stderr and returns `None`. It scrapes the
    /// targets of [`Prometheus::scrape`].
    pub(crate) fn start_or_skip(test_name: &str, rules: &str) -> Option<Self> {
        or_skip(test_name, Self::start(rules))
    }

    fn start(rules: &str) -> Result<Self, Unavailable> {
        let failed = |error: std::io::Error| Unavailable::StartFailed(error.to_string());
        let dir = tempfile::tempdir().map_err(failed)?;
        let config = "global: { scrape_interval: 1s, evaluation_interval: 1s }\n\
                      rule_files: [rules.yaml]\n\
                      scrape_configs: [{ job_name: deltabus, file_sd_configs: [{ files: [targets.json], refresh_interval: 1s }] }]\n";
        fs::write(dir.path().join("prometheus.yaml"), config).map_err(failed)?;
        fs::write(dir.path().join("rules.yaml"), rules).map_err(failed)?;
        fs::write(dir.path().join("targets.json"), "[]").map_err(failed)?;
        let [address] = free_ports().map_err(failed)?;
        let log = File::create(dir.path().join("log")).map_err(failed)?;
        let child = Command::new("prometheus")
            .current_dir(dir.path())
            .args(["--config.file=prometheus.yaml", "--storage.tsdb.path=data"])
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(|error| Unavailable::Missing(format!("prometheus cannot be run: {error}")))?;
        Ok(Self { child, address, dir })
    }

    /// Sets the addresses whose `/metrics` it scrapes from now on.
    pub(crate) fn scrape(&self, targets: &[&str]) {
        let targets = serde_json::json!([{ "targets": targets }]);
        // Prometheus watches the directory, so a file written in place might be read half-written.
        let (unfinished, file) = (self.path("targets.unfinished"), self.path("targets.json"));
        fs::write(&unfinished, targets.to_string()).expect("the directory is writable");
        fs::rename(unfinished, file).expect("the directory is writable");
    }

    /// Runs a query; an error has Prometheus' own text. `None` before Prometheus is up.
    pub(crate) fn query(&self, query: &str) -> Option<Result<Vec<Value>, String>> {
        let query: String = form_urlencoded::Serializer::new(String::new()).append_pair("query", query).finish();
        let answer = request(&self.address.to_string(), "GET", &format!("/api/v1/query?{query}"), &[]).ok()?;
        let answer: Value = serde_json::from_str(&answer.body).ok()?;
        Some(match answer["data"]["result"].as_array() {
            Some(result) => Ok(result.clone()),
            None => Err(answer["error"].to_string()),
        })
    }

    /// Waits until a query has a result; returns it.
    pub(crate) async fn wait_for(&self, query: &str) -> Vec<Value> {
        let deadline = Instant::now() + Duration::from_mins(1);
        loop {
            match self.query(query) {
                Some(Ok(result)) if !result.is_empty() => return result,
                Some(Err(error)) => panic!("{query}: {error}"),
                _ => {}
            }
            assert!(Instant::now() < deadline, "{query} never had a result\n{}", end_of(&self.path("log")));
            actix_rt::time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        Path::join(self.dir.path(), name)
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
