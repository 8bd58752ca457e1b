//! The metrics beside Prometheus: its own checks of the page, the alerts and their tests, and a
//! Prometheus that scrapes a server under load and evaluates the dashboard and the alerts.

use crate::cases::Cases;
use crate::lab::{Door, Lab, Server};
use crate::nbd::{OPT_EXPORT_NAME, READ, Range, Raw};
use crate::process::until;
use crate::tools;
use crate::volume::{Maker, Recipe};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

/// Prometheus has begun to listen or has scraped a few times, or our server has said its port.
const LIMIT: Duration = Duration::from_secs(60);
/// Name of the file of alerts in both places.
const RULES: &str = "blockyard.rules.yml";
/// A sector of the second export that no read gets.
const BAD_SECTOR: u64 = 1024;

pub(crate) fn run(cases: &mut Cases, lab: &Lab) {
    cases.run("Prometheus' promtool accepts the metrics and the alerts", || accepted(lab));
    cases.run("a Prometheus evaluates the dashboard and the alerts", || evaluated(lab));
}

fn packaged(name: &str) -> PathBuf {
    tools::root().join("packaging").join(name)
}

/// A server of two volumes, which have every metric together.
struct Scraped {
    server: Server,
    /// Port of the metrics.
    port: u16,
}

impl Scraped {
    fn start(lab: &Lab) -> Result<Self> {
        let disk = Recipe { name: "scraped", maker: Maker::Blockyard, options: "" }.make(lab)?;
        // There are no writes, so two files are as good as two paths to one.
        let [one, two] =
            ["scraped-1.img", "scraped-2.img"].map(|name| lab.write(name, [0; 1 << 19]));
        let paths = format!("round-robin 0 2 0 {} {}", one?.display(), two?.display());
        let lines = format!("0 {BAD_SECTOR} multipath 0 0 1 1 {paths}\n{BAD_SECTOR} 8 error\n");
        let table = lab.write("scraped.table", lines)?;
        let socket = lab.path("scraped.sock");
        let control = lab.path("scraped.ctl");
        let pass = lab.pass();
        let volume = &disk.image;
        let text = format!(
            "socket = {socket:?}\ncontrol = {control:?}\nmetrics = \"127.0.0.1:0\"\n\
             [exports.disk]\nvolume = {volume:?}\nkey_file = {pass:?}\n\
             iops_limit = 100000\nbps_limit = \"1G\"\n\
             [exports.paths]\ntable = {table:?}\n"
        );
        let mut serve = lab.blockyard(&["serve", "--config"]);
        serve.arg(lab.write("scraped.toml", text)?);
        let server = lab.start("scraped", serve, Door::Unix(socket))?;
        // The line follows the first socket that accepts.
        let mut port = None;
        until(LIMIT, || {
            port = port_after("metrics at http://127.0.0.1:", &server.log());
            port.is_some()
        });
        let port = port.with_context(|| format!("no port in {}", server.log()))?;
        Ok(Self { server, port })
    }

    /// A request of each kind, and one that fails.
    fn load(&self) -> Result<()> {
        let mut disk = Raw::connect(self.server.socket())?;
        disk.write(0, &[1; 4096])?;
        disk.read(0, 4096)?;
        disk.flush()?;
        let mut paths = Raw::negotiate(self.server.socket())?;
        paths.option(OPT_EXPORT_NAME, b"paths")?;
        paths.export()?;
        paths.read(0, 4096)?;
        let bad = Range { offset: BAD_SECTOR << 9, len: 4096 };
        ensure!(paths.call(READ, bad, &[]).is_err(), "the line `error` has data");
        Ok(())
    }

    fn page(&self) -> Result<String> {
        get(self.port, "/metrics")
    }
}

fn port_after(words: &str, text: &str) -> Option<u16> {
    let (_, rest) = text.split_once(words)?;
    rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
}

/// The body of a page.
fn get(port: u16, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(LIMIT))?;
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    let parts = reply.split_once("\r\n\r\n");
    let (head, body) = parts.with_context(|| format!("{path}: no head in {reply:?}"))?;
    ensure!(head.split(' ').nth(1) == Some("200"), "{path}: {head}\n{body}");
    Ok(body.to_owned())
}

fn accepted(lab: &Lab) -> Result<String> {
    let scraped = Scraped::start(lab)?;
    scraped.load()?;
    let page = scraped.page()?;
    let file = lab.write("scraped.page", &page)?;
    let mut check = tools::tool("promtool");
    tools::run(check.args(["check", "metrics"]).stdin(File::open(file)?))?;
    let documented = fs::read_to_string(tools::root().join("docs/status.md"))?;
    let families = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    for family in families.clone() {
        ensure!(documented.contains(&format!("`{family}`")), "docs/status.md lacks {family}");
    }
    scraped.server.stop()?;
    let alerts = packaged("prometheus");
    for words in [
        ["check", "rules", RULES],
        ["check", "config", "blockyard.yml"],
        ["test", "rules", "blockyard.rules.test.yml"],
    ] {
        tools::run(tools::tool("promtool").args(words).current_dir(&alerts))?;
    }
    Ok(format!("{} metrics", families.count()))
}

/// A running Prometheus; killed on drop.
struct Prometheus {
    child: Child,
    port: u16,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Prometheus {
    /// With the configuration that we ship, but for the target and shorter times.
    fn start(lab: &Lab, target: u16) -> Result<Self> {
        tools::need("prometheus")?;
        let rules = fs::read(packaged("prometheus").join(RULES))?;
        lab.write(RULES, rules)?;
        let shipped = fs::read_to_string(packaged("prometheus/blockyard.yml"))?;
        let config = shipped.replace("9100\"", &format!("{target}\"")).replace("15s", "1s");
        ensure!(config.matches(&target.to_string()).count() == 1, "no target in {shipped}");
        let config = lab.write("prometheus.yml", config)?;
        let data = lab.path("prometheus");
        let log = lab.path("prometheus.log");
        let found = ["/usr/bin/prometheus", "/usr/local/bin/prometheus"];
        let program = found.iter().find(|path| Path::new(path).exists()).context("not found")?;
        let mut command = lab.unprivileged(Path::new(program));
        command.arg(format!("--config.file={}", config.display()));
        command.arg(format!("--storage.tsdb.path={}", data.display()));
        command.arg("--web.listen-address=127.0.0.1:0");
        let output = File::create(&log)?;
        command.stdout(output.try_clone()?).stderr(output);
        let mut prometheus = Self { child: command.spawn()?, port: 0 };
        let said = || fs::read_to_string(&log).unwrap_or_default();
        let port = || port_after("msg=\"Listening on\" address=127.0.0.1:", &said());
        until(LIMIT, || port().is_some() || !matches!(prometheus.child.try_wait(), Ok(None)));
        let port = port().with_context(|| tools::tail(&said()))?;
        ensure!(until(LIMIT, || get(port, "/-/ready").is_ok()), "{}", tools::tail(&said()));
        prometheus.port = port;
        Ok(prometheus)
    }

    /// The number of series of an expression's value.
    fn series(&self, expression: &str) -> Result<usize> {
        let letters = expression.bytes().map(|byte| format!("%{byte:02x}"));
        let query: String = letters.collect();
        let body = get(self.port, &format!("/api/v1/query?query={query}"));
        let body = body.with_context(|| format!("the expression {expression}"))?;
        let answer: Value = serde_json::from_str(&body)?;
        Ok(answer["data"]["result"].as_array().context("no vector")?.len())
    }

    /// Waits until the value of each of these expressions has a series.
    fn wait_for(&self, mut expressions: BTreeSet<String>, go_on: impl Fn() -> bool) -> Result<()> {
        let mut refused = Ok(());
        until(LIMIT, || {
            expressions.retain(|expression| match self.series(expression) {
                Ok(count) => count == 0,
                Err(error) => {
                    refused = Err(error);
                    true
                }
            });
            refused.is_err() || expressions.is_empty() || !go_on()
        });
        refused?;
        ensure!(expressions.is_empty(), "no value: {expressions:#?}");
        Ok(())
    }

    /// The alerts' expressions, which were all evaluated.
    fn alerts(&self) -> Result<Vec<String>> {
        let body = get(self.port, "/api/v1/rules")?;
        let answer: Value = serde_json::from_str(&body)?;
        let groups = answer["data"]["groups"].as_array().context("no groups")?;
        let rules = groups.iter().filter_map(|group| group["rules"].as_array()).flatten();
        let rules = rules.map(|rule| {
            ensure!(rule["health"] == "ok", "{rule}");
            Ok(rule["query"].as_str().context("no query")?.to_owned())
        });
        rules.collect()
    }
}

/// The expressions of the dashboard and of its variables, with values for the variables.
fn dashboard() -> Result<BTreeSet<String>> {
    let text = fs::read_to_string(packaged("grafana/blockyard.json"))?;
    let dashboard: Value = serde_json::from_str(&text)?;
    let mut found = BTreeSet::new();
    let panels = dashboard["panels"].as_array().context("no panels")?;
    for target in panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten() {
        found.insert(target["expr"].as_str().context("a target without expr")?.to_owned());
    }
    let variables = dashboard["templating"]["list"].as_array().context("no variables")?;
    for query in variables.iter().filter_map(|variable| variable["query"]["query"].as_str()) {
        let inside = query.strip_prefix("label_values(").and_then(|rest| rest.rsplit_once(','));
        found.insert(inside.with_context(|| query.to_owned())?.0.to_owned());
    }
    let value = |text: String| {
        let text = text.replace("$instance", ".*").replace("$export", ".*");
        text.replace("$__rate_interval", "1m")
    };
    let found: BTreeSet<String> = found.into_iter().map(value).collect();
    ensure!(found.len() > 20, "only {} expressions", found.len());
    ensure!(!found.iter().any(|one| one.contains('$')), "an unknown variable: {found:#?}");
    Ok(found)
}

/// The names of metrics in an expression.
fn names(expression: &str) -> impl Iterator<Item = &str> {
    let words = expression.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    words.filter(|word| word.starts_with("blockyard_") || word.starts_with("process_"))
}

fn evaluated(lab: &Lab) -> Result<String> {
    let scraped = Scraped::start(lab)?;
    let prometheus = Prometheus::start(lab, scraped.port)?;
    scraped.load()?;
    let shown = dashboard()?;
    prometheus.wait_for(shown.clone(), || scraped.load().is_ok())?;
    let firing = r#"ALERTS{alertname="BlockyardErrors",alertstate="firing",op="read",class="io"}"#;
    prometheus.wait_for(BTreeSet::from([firing.to_owned()]), || scraped.load().is_ok())?;
    let alerts = prometheus.alerts()?;
    let page = scraped.page()?;
    for name in shown.iter().chain(&alerts).flat_map(|expression| names(expression)) {
        let is_it =
            |line: &str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
        ensure!(page.lines().any(is_it), "the server has no metric {name}");
    }
    scraped.server.stop()?;
    let down = r#"ALERTS{alertname="BlockyardDown"}"#.to_owned();
    prometheus.wait_for(BTreeSet::from([down]), || true)?;
    Ok(format!("{} expressions of the dashboard, {} alerts", shown.len(), alerts.len()))
}
