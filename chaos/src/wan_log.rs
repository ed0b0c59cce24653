//! Appends to a log from far away; row L6. The nodes are one site, and the clients are behind a delay; or the nodes are two regions, and the
//! clients are in the first, where the sequencer is.
//!
//! At one site there is a rival more: a proxy ([`proxy`]), to which clients speak once, and which asks for the position and writes at the site. The load of all others is `staves bench log`, in the namespace of clients. Figure 1 is the latency of appends against their rate, for each way of appending;
//! figure 2 the holes for each append against the rate, where clients guess.

pub mod proxy;

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::{Value, json};

use self::proxy::ProxyLoad;
use crate::lab::{HUB, Lab, tool};
use crate::nodes::{FOLDER, LOG_PORT, Nodes, Setup, is_whole, status};
use crate::run::RunSettings;
use crate::wan::{DelayCounts, Wan};

/// The ways of appending, in the words of the command line.
const MODES: [&str; 3] = ["bind", "predict", "corfu"];
/// The fourth, by its name: corfu's, done by a proxy at the site.
const PROXY: &str = "proxy";
/// The time of each round before it is measured.
const WARM_UP: Duration = Duration::from_secs(2);
/// The bound on the nodes' start.
const STARTING: Duration = Duration::from_secs(60);
/// The pool.
const POOL: &str = "logs";

/// The parameters of the measurement.
#[derive(Clone, Debug)]
pub struct WanLogPlan {
    /// The delay between clients and nodes, or between the regions, one way.
    pub one_way: Duration,
    /// The second half of the nodes is a region of its own.
    pub two_regions: bool,
    /// Appends a second of all clients.
    pub rates: Vec<u64>,
    /// The clients.
    pub clients: u32,
    /// The nodes.
    pub nodes: usize,
    /// The scheme of the pool.
    pub scheme: String,
    /// The seconds of each round.
    pub seconds: u64,
    /// Rounds of each rate and mode, of which the median is reported.
    pub rounds: u32,
}

/// The results: those of `staves bench log`, one for each mode and rate.
#[derive(Clone, Debug, Default)]
pub struct WanLogReport {
    one_way: Duration,
    two_regions: bool,
    clients: u32,
    runs: Vec<Value>,
    counts: DelayCounts,
}

/// Measures in a lab of its own.
///
/// # Errors
/// No lab can be built, nodes do not start, or a bench fails.
pub fn measure(
    settings: &RunSettings,
    plan: &WanLogPlan,
    mut tell: impl FnMut(String) + Send,
) -> anyhow::Result<WanLogReport> {
    let folder = tempfile::Builder::new()
        .prefix(&format!("{FOLDER}{}-", std::process::id()))
        .tempdir_in(&settings.folder)
        .context("cannot make a folder for the nodes")?;
    // A thread of its own: it moves into the lab's namespace, and never back.
    let outcome = std::thread::scope(|scope| {
        let run = scope.spawn(|| in_lab(settings, plan, folder.path(), &mut tell));
        run.join()
            .unwrap_or_else(|_| Err(anyhow::anyhow!("the measurement panicked")))
    });
    outcome.map_err(|error| {
        let kept = folder.keep();
        error.context(format!("the nodes' logs are in {}", kept.display()))
    })
}

fn in_lab(
    settings: &RunSettings,
    plan: &WanLogPlan,
    folder: &Path,
    tell: &mut impl FnMut(String),
) -> anyhow::Result<WanLogReport> {
    let lab = Lab::new(plan.nodes)?;
    lab.enter()?;
    let setup = Setup {
        program: settings.program.clone(),
        mutant: None,
        scheme: "1+1".to_owned(),
        clocks_apart: false,
        wall_clocks_apart: false,
        few_descriptors: false,
        on_disk: false,
        volumes: false,
        log_door: true,
        zone: plan.two_regions.then_some(plan.nodes.div_ceil(2)),
    };
    let mut nodes = Nodes::new(setup, folder);
    for at in 0..plan.nodes {
        nodes.add()?;
        nodes.start(&lab, at, at == 0)?;
        let up = |said: &Value| said["nodes"][at]["up"] == true;
        wait(&lab, up, "a node is up")?;
    }
    let program = settings.program.display().to_string();
    let doors = (0..plan.nodes).map(|at| format!("{}:1600", lab.address(at)));
    let doors = doors.collect::<Vec<String>>().join(",");
    let begin = ["--cluster", &doors, "--deadline", "30s"];
    let pool = [
        "pool", "create", POOL, "--kind", "log", "--memory", "64MiB", "--scheme",
    ];
    tool(&program, &[&begin[..], &pool, &[&plan.scheme]].concat())?;
    wait(&lab, is_whole, "the pool is whole")?;
    let mut wan = Wan::new(plan.one_way)?;
    delay(&lab, &mut wan, plan)?;
    let mut report = WanLogReport {
        one_way: plan.one_way,
        two_regions: plan.two_regions,
        clients: plan.clients,
        ..WanLogReport::default()
    };
    for mode in MODES {
        let runs = bench(&program, &begin, plan, mode)?;
        tell(format!("{mode}: {} rates measured", runs.len()));
        report.runs.extend(runs);
    }
    if !plan.two_regions {
        let door = format!("{}:{}", lab.address(0), LOG_PORT);
        report.runs.extend(by_proxy(&program, &begin, plan, &door)?);
        tell(format!("{PROXY}: {} rates measured", plan.rates.len()));
    }
    if !wan.is_whole() {
        bail!("the delay had ended at some namespace, which was cut off since");
    }
    report.counts = wan.counts();
    Ok(report)
}

/// Delays what places far from each other send.
fn delay(lab: &Lab, wan: &mut Wan, plan: &WanLogPlan) -> anyhow::Result<()> {
    let is_near = |at: usize| match (plan.two_regions, at) {
        (_, HUB) => true,
        (true, at) => at < plan.nodes.div_ceil(2),
        (false, _) => false,
    };
    let places = || (0..plan.nodes).chain([HUB]);
    for at in places() {
        let far = places().filter(|from| is_near(*from) != is_near(at));
        let far: Vec<String> = far.map(|from| lab.address(from)).collect();
        wan.delay(&lab.place(at), &far)?;
    }
    Ok(())
}

/// Appends through the proxy at all rates: a log for each round.
fn by_proxy(
    program: &str,
    begin: &[&str],
    plan: &WanLogPlan,
    door: &str,
) -> anyhow::Result<Vec<Value>> {
    let mut runs = Vec::new();
    for rate in &plan.rates {
        let mut rounds = Vec::new();
        for _ in 0..plan.rounds {
            let log = "by-proxy".to_owned();
            let create = ["log", "create", &log, "--pool", POOL, "--mode", "corfu"];
            tool(program, &[begin, &create].concat())?;
            rounds.push(proxy::run(&ProxyLoad {
                door: door.parse().context("an address")?,
                log: log.clone(),
                rate: *rate,
                warm_up: WARM_UP,
                duration: Duration::from_secs(plan.seconds),
            })?);
            let delete = ["log", "delete", &log, "--pool", POOL, "--yes"];
            tool(program, &[begin, &delete].concat())?;
        }
        runs.extend(proxy::median(*rate, rounds));
    }
    Ok(runs)
}

/// Runs the load of one mode at all rates.
fn bench(
    program: &str,
    begin: &[&str],
    plan: &WanLogPlan,
    mode: &str,
) -> anyhow::Result<Vec<Value>> {
    let rates: Vec<String> = plan.rates.iter().map(ToString::to_string).collect();
    let (rates, clients) = (rates.join(","), plan.clients.to_string());
    let (seconds, rounds) = (plan.seconds.to_string(), plan.rounds.to_string());
    let load = [
        "bench", "log", "-o", "json", "--pool", POOL, "--mode", mode, "--rate", &rates,
    ];
    let rest = ["--clients", &clients, "--seconds", &seconds];
    let warm_up = format!("{}s", WARM_UP.as_secs());
    let rounds = ["--rounds", &rounds, "--warm-up", &warm_up];
    let place: &[&str] = match plan.two_regions {
        true => &["--sequencer-zone", "z1"],
        false => &[],
    };
    let said = tool(program, &[begin, &load, &rest, &rounds, place].concat())?;
    let mut said: Value = serde_json::from_str(&said).context("the bench gave no JSON")?;
    match said["runs"].take() {
        Value::Array(runs) => Ok(runs),
        other => bail!("the bench gave no runs: {other}"),
    }
}

/// Waits until some node says what is wanted.
fn wait(lab: &Lab, wanted: impl Fn(&Value) -> bool, what: &str) -> anyhow::Result<()> {
    let until = Instant::now() + STARTING;
    while Instant::now() < until {
        if status(&lab.address(0)).is_ok_and(|said| wanted(&said)) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    bail!("after {STARTING:?} still waiting until {what}")
}

impl WanLogReport {
    /// True if every append was acknowledged, and no packet dropped.
    pub fn is_clean(&self) -> bool {
        let failed = |run: &Value| run["errors"] != 0 || run["unsent"] != 0;
        !self.runs.iter().any(failed) && self.counts.dropped + self.counts.overflows == 0
    }

    fn ms(run: &Value, quantile: &str) -> f64 {
        run["latency_us"][quantile].as_f64().unwrap_or_default() / 1000.0
    }

    fn of(&self, mode: &str, rate: u64) -> Option<&Value> {
        let is_it = |run: &&Value| run["mode"] == mode && run["rate"] == rate;
        self.runs.iter().find(is_it)
    }

    fn rates(&self) -> Vec<u64> {
        let mut rates: Vec<u64> = self
            .runs
            .iter()
            .filter_map(|r| r["rate"].as_u64())
            .collect();
        rates.sort_unstable();
        rates.dedup();
        rates
    }

    /// Both figures as JSON, times in milliseconds.
    pub fn json(&self) -> Value {
        let latency = |run: &Value| {
            json!({
                "mode": run["mode"], "rate": run["rate"],
                "appends_per_second": run["appends_per_second"],
                "p50_ms": Self::ms(run, "p50"), "p90_ms": Self::ms(run, "p90"),
                "p99_ms": Self::ms(run, "p99"), "max_ms": Self::ms(run, "max"),
                "errors": run["errors"], "unsent": run["unsent"],
            })
        };
        let holes =
            |run: &Value| json!({"rate": run["rate"], "holes_per_append": run["holes_per_append"]});
        let predicted = self.runs.iter().filter(|run| run["mode"] == "predict");
        json!({
            "round_trip_ms": 2.0 * self.one_way.as_secs_f64() * 1000.0,
            "clients": self.clients,
            "two_regions": self.two_regions,
            "figure_1": self.runs.iter().map(latency).collect::<Vec<_>>(),
            "figure_2": predicted.map(holes).collect::<Vec<_>>(),
            "packets_dropped": self.counts.dropped + self.counts.overflows,
            "packets_late_max_ms": self.counts.late_max.as_secs_f64() * 1000.0,
        })
    }
}

impl std::fmt::Display for WanLogReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let round_trip = 2.0 * self.one_way.as_secs_f64() * 1000.0;
        let way = match self.two_regions {
            true => "between the regions",
            false => "to the site",
        };
        writeln!(
            f,
            "Latency of an append in ms (p50 / p99), {} clients, {round_trip:.0} ms round trip {way}:\n",
            self.clients
        )?;
        let proxy = (!self.two_regions).then_some(PROXY);
        let ways: Vec<&str> = MODES.into_iter().chain(proxy).collect();
        let line = " --- |".repeat(ways.len() + 1);
        writeln!(f, "| appends/s | {} |\n|{line}", ways.join(" | "))?;
        for rate in self.rates() {
            let mut row = format!("| {rate}");
            for mode in &ways {
                let cell = self.of(mode, rate).map_or_else(String::new, |run| {
                    let [p50, p99] = ["p50", "p99"].map(|q| Self::ms(run, q));
                    format!("{p50:.1} / {p99:.1}")
                });
                let _ = write!(row, " | {cell}");
            }
            writeln!(f, "{row} |")?;
        }
        writeln!(
            f,
            "\nHoles for each append, where clients guess (predict):\n"
        )?;
        writeln!(f, "| appends/s | holes |\n| --- | --- |")?;
        for rate in self.rates() {
            let run = self.of("predict", rate);
            let holes = run.and_then(|run| run["holes_per_append"].as_f64());
            writeln!(f, "| {rate} | {:.3} |", holes.unwrap_or_default())?;
        }
        write!(f, "\nDelay: {}", self.counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Row L6: both figures follow from the runs of the bench.
    #[test]
    fn l6_both_figures_are_told() {
        let run = |mode: &str, p50: f64, holes: f64| {
            json!({
                "mode": mode, "rate": 40, "appends_per_second": 39.9, "errors": 0, "unsent": 0,
                "latency_us": {"p50": p50, "p90": p50, "p99": 2.0 * p50, "max": 2.0 * p50},
                "holes_per_append": holes,
            })
        };
        let mut report = WanLogReport {
            one_way: Duration::from_millis(70),
            two_regions: false,
            clients: 4,
            runs: vec![
                run("bind", 141_000.0, 0.0),
                run("predict", 143_000.0, 0.5),
                run(PROXY, 145_000.0, 0.0),
            ],
            counts: DelayCounts::default(),
        };
        let text = report.to_string();
        assert!(
            text.contains("| 40 | 141.0 / 282.0 | 143.0 / 286.0 |  | 145.0 / 290.0 |"),
            "{text}"
        );
        assert!(text.contains("| 40 | 0.500 |"), "{text}");
        let json = report.json();
        assert_eq!(json["round_trip_ms"], 140.0);
        assert_eq!(json["figure_1"][1]["p99_ms"], 286.0);
        assert_eq!(json["figure_2"][0]["holes_per_append"], 0.5);
        assert_eq!(json["figure_2"].as_array().map(Vec::len), Some(1));
        assert!(text.contains("round trip to the site"), "{text}");
        report.two_regions = true;
        let text = report.to_string();
        assert!(text.contains("round trip between the regions"), "{text}");
        assert!(
            text.contains("| corfu |\n| --- | --- | --- | --- |\n"),
            "{text}"
        );
        assert!(report.is_clean());
        report.runs[0]["errors"] = json!(1);
        assert!(!report.is_clean());
    }
}
