//! `blockyard top`: shows a server's activity once a second, over its control socket.
//!
//! Each frame is the difference of two statuses. On a terminal it is drawn on the alternate screen
//! (`screen`), as a table of all exports or the details of one (`view`); elsewhere frames follow
//! each other, or are lines of JSON.

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use blockyard::limit::Limit;
use blockyard::status::{
    Activity, KindRequests, Loss, LostServer, RefusedWrite, Shares, State, Threads, VolumeStatus,
};
use blockyard::{Control, RequestKind, Stage, Status, StopSignal};
use blockyard_host::process::CollectedSignal;
use clap::{Args, ValueHint};
use rustix::event::{PollFd, PollFlags, Timespec};
use serde::Serialize;

use super::control::of_export;
use crate::args::ShortHelpArgs;
use crate::failure::{Failure, printable};
use crate::json::{Members, line};
use crate::output::print_on;
use crate::size::{human_count, human_size, human_time};
use crate::stages::verdict;

mod screen;
mod view;

use screen::Screen;
use view::View;

/// Columns of a full bar.
const BAR_COLUMNS: f64 = 40.0;

/// Show the activity of a server: rates, depth, time by stage, the limit
///
/// The server must run with `serve --control SOCKET`. On a terminal, several exports are a table:
/// arrows, Page Up, Page Down, Home, End, j and k select an export, Enter shows its details, the
/// keys n, r, w and l sort by name, read, write and latency, and q or Ctrl-C ends the command.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct TopArgs {
    /// The server's control socket
    #[arg(value_name = "SOCKET", value_hint = ValueHint::FilePath)]
    socket: PathBuf,

    /// Show the volume with this export name only
    #[arg(long, value_name = "NAME")]
    export: Option<String>,

    /// Seconds between two statuses
    #[arg(long, value_name = "SECONDS", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=3600))]
    interval: u16,

    /// Show one interval, then exit
    #[arg(long)]
    once: bool,

    /// Print a line of JSON for each interval
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    help: ShortHelpArgs,
}

/// Runs until a signal, or until the reader closes the pipe.
pub(crate) fn run(args: &TopArgs) -> Result<(), Failure> {
    let failed = |error| Failure::failed(format!("cannot catch signals: {error}"));
    let stop = StopSignal::install().map_err(failed)?;
    let before = snapshot(args)?;
    if !args.json && !args.once && std::io::stdout().is_terminal() {
        let sizes = CollectedSignal::window_size().map_err(failed)?;
        return run_on_screen(args, &stop, &sizes, before);
    }
    let mut before = before;
    loop {
        let deadline = Instant::now() + args.interval();
        if matches!(next_event(&stop, deadline, None), Event::Signal) {
            return Ok(());
        }
        let now = snapshot(args)?;
        let is_read = if args.json {
            print_on(&line(&FrameReport::of(&now, &before)))?
        } else {
            print_on(&(frame(&now, &before) + "\n"))?
        };
        if args.once || !is_read {
            return Ok(());
        }
        before = now;
    }
}

/// Shows frames until a signal or the key that quits. Keys act on the last frame at once.
fn run_on_screen(
    args: &TopArgs,
    stop: &StopSignal,
    sizes: &CollectedSignal,
    first: Snapshot,
) -> Result<(), Failure> {
    let screen = Screen::enter();
    let mut view = View::new();
    let mut before = first;
    // Until the first interval has passed there is nothing to show.
    let mut now = None;
    let mut deadline = Instant::now() + args.interval();
    loop {
        match next_event(stop, deadline, Some((&screen, sizes))) {
            Event::Signal => return Ok(()),
            Event::Size => sizes.take(),
            Event::Time => {
                deadline = Instant::now() + args.interval();
                if let Some(now) = now.replace(snapshot(args)?) {
                    before = now;
                }
            }
            Event::Key => {
                // Without its terminal the command ends.
                let Some(keys) = screen.keys() else { return Ok(()) };
                let last = now.as_ref().unwrap_or(&before);
                let quits = |key| view.on_key(key, (last, &before), screen.size());
                if keys.into_iter().any(quits) {
                    return Ok(());
                }
            }
        }
        if let Some(now) = &now {
            let size = screen.size();
            if !print_on(&screen::drawn(&view.lines(now, &before, size), size))? {
                return Ok(());
            }
        }
    }
}

impl TopArgs {
    fn interval(&self) -> Duration {
        Duration::from_secs(self.interval.into())
    }
}

/// A status and its time.
struct Snapshot {
    status: Status,
    at: Instant,
}

fn snapshot(args: &TopArgs) -> Result<Snapshot, Failure> {
    let status = of_export(Control::at(&args.socket).status()?, args.export.as_deref())?;
    Ok(Snapshot { status, at: Instant::now() })
}

/// Event that ended a wait.
enum Event {
    Time,
    Signal,
    Key,
    Size,
}

/// Waits for the time, a signal, a key, or another size of the terminal.
fn next_event(
    stop: &StopSignal,
    deadline: Instant,
    screen: Option<(&Screen, &CollectedSignal)>,
) -> Event {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let mut fds = vec![PollFd::new(stop, PollFlags::IN)];
        fds.extend(screen.map(|(_, size)| PollFd::new(size, PollFlags::IN)));
        let input = screen.and_then(|(screen, _)| screen.input());
        fds.extend(input.map(|input| PollFd::from_borrowed_fd(input, PollFlags::IN)));
        match rustix::event::poll(&mut fds, Some(&left)) {
            Ok(0) => return Event::Time,
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return Event::Signal,
        }
        let is_ready = |place: usize| fds.get(place).is_some_and(|fd| !fd.revents().is_empty());
        return match (is_ready(0), is_ready(1)) {
            (true, _) => Event::Signal,
            (false, true) => Event::Size,
            (false, false) => Event::Key,
        };
    }
}

/// Growth of a counter per second.
fn rate(now: u64, before: u64, seconds: f64) -> f64 {
    now.saturating_sub(before) as f64 / seconds
}

/// Rates of a kind of requests: number, bytes, errors.
fn rates(now: &KindRequests, before: &KindRequests, seconds: f64) -> [f64; 3] {
    [
        rate(now.requests, before.requests, seconds),
        rate(now.bytes, before.bytes, seconds),
        rate(now.errors, before.errors, seconds),
    ]
}

/// Each volume with its earlier activity; zeros if it is new.
fn volumes<'a>(
    now: &'a Snapshot,
    before: &'a Snapshot,
) -> impl Iterator<Item = (&'a VolumeStatus, Activity)> {
    now.status.with_earlier(&before.status).map(|(device, earlier)| {
        (device, earlier.map_or_else(Activity::default, |earlier| earlier.activity.clone()))
    })
}

/// The JSON of a frame.
#[derive(Serialize)]
struct FrameReport<'a> {
    seconds: f64,
    devices: Vec<VolumeReport<'a>>,
}

#[derive(Serialize)]
struct VolumeReport<'a> {
    exports: &'a [String],
    state: State,
    loss: Option<&'a Loss>,
    lost_servers: &'a [LostServer],
    refused_write: Option<&'a RefusedWrite>,
    in_flight: u64,
    connections: u64,
    limit: Option<Limit>,
    /// By kind of requests.
    #[serde(flatten)]
    rates: Members<&'static str, RatesReport>,
    mean_ns: f64,
    /// By stage.
    shares: Members<&'static str, f64>,
}

#[derive(Serialize)]
struct RatesReport {
    requests_per_s: f64,
    bytes_per_s: f64,
    errors_per_s: f64,
}

impl<'a> FrameReport<'a> {
    fn of(now: &'a Snapshot, before: &'a Snapshot) -> Self {
        let seconds = now.at.duration_since(before.at).as_secs_f64();
        let devices =
            volumes(now, before).map(|(device, before)| VolumeReport::of(device, &before, seconds));
        Self { seconds, devices: devices.collect() }
    }
}

impl<'a> VolumeReport<'a> {
    fn of(device: &'a VolumeStatus, before: &Activity, seconds: f64) -> Self {
        let activity = &device.activity;
        let rates = RequestKind::ALL.map(|kind| {
            let now = activity.requests.of(kind);
            let before = before.requests.of(kind);
            let [requests_per_s, bytes_per_s, errors_per_s] = rates(now, before, seconds);
            (kind.name(), RatesReport { requests_per_s, bytes_per_s, errors_per_s })
        });
        let Shares { stages, mean_ns } = activity.requests.shares_since(&before.requests);
        Self {
            exports: &device.exports,
            state: device.state,
            loss: device.loss.as_ref(),
            lost_servers: &device.lost_servers,
            refused_write: device.refused_write.as_ref(),
            in_flight: device.counts.in_flight,
            connections: device.counts.connections,
            limit: activity.limit_since(before),
            rates: rates.into_iter().collect(),
            mean_ns,
            shares: Stage::ALL.map(Stage::name).into_iter().zip(stages).collect(),
        }
    }
}

fn frame(now: &Snapshot, before: &Snapshot) -> String {
    let seconds = now.at.duration_since(before.at).as_secs_f64();
    let volumes = volumes(now, before).map(|(device, before)| volume(device, &before, seconds));
    volumes.collect::<Vec<_>>().join("\n")
}

fn volume(device: &VolumeStatus, before: &Activity, seconds: f64) -> String {
    let names: Vec<String> = device.exports.iter().map(|name| format!("{name:?}")).collect();
    let activity = &device.activity;
    let mut text = printable(&format!(
        "export {}: {}{}{}{}, {}, {} in flight",
        names.join(", "),
        device.state.name(),
        if device.loss.is_none() { "" } else { ", flushes and writes fail (see status)" },
        if device.refused_write.is_none() { "" } else { ", writes fail (see status)" },
        if device.lost_servers.is_empty() { "" } else { ", server lost (see status)" },
        human_count(device.counts.connections, "connection"),
        device.counts.in_flight,
    ));
    text.push('\n');
    let mut line = |line: String| {
        writeln!(text, "  {}", printable(&line)).expect("writing to a string succeeds");
    };
    for kind in RequestKind::ALL {
        let now = activity.requests.of(kind);
        let before = before.requests.of(kind);
        let [requests, bytes, errors] = rates(now, before, seconds);
        let kind = kind.name();
        let bytes = human_size(bytes as u64);
        line(format!("{kind:<12}{requests:>10.0}/s  {bytes:>12}/s  {errors:>6.0} errors/s"));
    }
    let Shares { stages, mean_ns } = activity.requests.shares_since(&before.requests);
    line(format!("{:<12}{:>10}", "mean time", human_time(mean_ns)));
    for (stage, share) in Stage::ALL.into_iter().zip(stages) {
        let bar = "#".repeat((share * BAR_COLUMNS).round() as usize);
        line(format!("  {:<12}{:>6.1} %  {bar}", stage.name(), share * 100.0));
    }
    for now in &activity.threads {
        let before = before.threads_of(now.work);
        let switches = |of: &Threads| of.voluntary_switches + of.involuntary_switches;
        line(format!(
            "{} {}: {:.0} % CPU, {:.0} switches/s",
            now.count,
            now.work.name(),
            rate(now.cpu_ns, before.cpu_ns, seconds) / 1e7,
            rate(switches(now), switches(&before), seconds),
        ));
    }
    let limit = activity.limit_since(before);
    verdict(limit.as_ref()).lines().for_each(|text| line(text.to_owned()));
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn snapshot(requests: u64, busy_ns: u64, at: Instant) -> Snapshot {
        let times = json!({ "samples": requests, "sum_ns": busy_ns });
        let device = json!({
            "exports": ["a\u{1b}b"],
            "state": "active",
            "connections": 1,
            "in_flight": 2,
            "threads": [{ "threads": "connections", "count": 1, "cpu_ns": busy_ns,
                          "voluntary_switches": requests, "involuntary_switches": 0 }],
            "requests": {
                "occupied_ns": busy_ns,
                "connected_ns": busy_ns,
                "read": { "requests": requests, "bytes": requests * 4096, "errors": 0,
                          "total": times, "stages": { "device": times } },
            },
        });
        let status = json!({ "devices": [device] }).to_string();
        Snapshot { status: Status::parse(status.as_bytes()).unwrap(), at }
    }

    #[test]
    fn frame_is_the_difference_of_two_statuses() {
        let begun = Instant::now();
        let before = snapshot(100, 1_000_000_000, begun);
        let now = snapshot(4_196, 3_000_000_000, begun + Duration::from_secs(2));
        let frame = frame(&now, &before);
        for part in [
            "active, 1 connection, 2 in flight",
            "read              2048/s         8 MiB/s       0 errors/s",
            "device       100.0 %  ########################################\n",
            "1 connections: 100 % CPU, 2048 switches/s",
            "limit: the device: 100 % of a request's 488 us is device",
        ] {
            assert!(frame.contains(part), "{part}\n{frame}");
        }
        assert!(!frame.contains('\u{1b}'), "a name must not steer the terminal");
        let json = serde_json::to_value(FrameReport::of(&now, &before)).unwrap();
        assert_eq!(json["devices"][0]["read"]["bytes_per_s"], 8_388_608.0);
        assert_eq!(json["devices"][0]["limit"]["party"], "the device");
    }
}
