//! `blockyard top`: shows a server's activity once a second, over its control socket.
//!
//! Each frame is the difference of two statuses. On a terminal it is drawn on the alternate screen,
//! which is left at any end of the command; elsewhere frames follow each other, or are lines of
//! JSON.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use blockyard::limit::Limit;
use blockyard::status::{
    Activity, KindRequests, Loss, RefusedWrite, Shares, State, Threads, VolumeStatus,
};
use blockyard::{Control, RequestKind, Stage, Status, StopSignal};
use clap::{Args, ValueHint};
use rustix::event::{PollFd, PollFlags, Timespec};
use serde::Serialize;

use crate::args::ShortHelpArgs;
use crate::failure::{Failure, printable};
use crate::json::{Members, line};
use crate::output::{print, print_on};
use crate::size::{human_count, human_size, human_time};
use crate::stages::verdict;

/// Alternate screen, cursor hidden (xterm's control sequences 1049 and 25).
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// Moves to the first line; each line and the screen after the last are then cleared.
const HOME: &str = "\x1b[H";
const WIPE_LINE: &str = "\x1b[K\n";
const WIPE_BELOW: &str = "\x1b[J";
/// Columns of a full bar.
const BAR_COLUMNS: f64 = 40.0;

/// Show the activity of a server: rates, depth, time by stage, the limit
///
/// The server must run with `serve --control SOCKET`. Ctrl-C ends the command.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct TopArgs {
    /// The server's control socket
    #[arg(value_name = "SOCKET", value_hint = ValueHint::FilePath)]
    socket: PathBuf,

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
    let mut before = snapshot(args)?;
    let is_screen = !args.json && !args.once && std::io::stdout().is_terminal();
    let _screen = is_screen.then(Screen::enter);
    loop {
        if is_stopped(&stop, Duration::from_secs(args.interval.into())) {
            return Ok(());
        }
        let now = snapshot(args)?;
        let is_read = match (args.json, is_screen) {
            (true, _) => print_on(&line(&FrameReport::of(&now, &before)))?,
            (false, false) => print_on(&(frame(&now, &before) + "\n"))?,
            (false, true) => print_on(&drawn(&frame(&now, &before)))?,
        };
        if args.once || !is_read {
            return Ok(());
        }
        before = now;
    }
}

/// A status and its time.
struct Snapshot {
    status: Status,
    at: Instant,
}

fn snapshot(args: &TopArgs) -> Result<Snapshot, Failure> {
    let status = Control::at(&args.socket).status()?;
    Ok(Snapshot { status, at: Instant::now() })
}

/// Waits; true if a signal came first.
fn is_stopped(stop: &StopSignal, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let mut fds = [PollFd::new(stop, PollFlags::IN)];
        match rustix::event::poll(&mut fds, Some(&left)) {
            Ok(ready) => return ready > 0,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return true,
        }
    }
}

/// The alternate screen, until it is dropped.
struct Screen;

impl Screen {
    fn enter() -> Self {
        let _ = print(ENTER);
        Self
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let mut stdout = std::io::stdout();
        let _ = stdout.write_all(LEAVE.as_bytes()).and_then(|()| stdout.flush());
    }
}

/// A frame drawn over the last one.
fn drawn(frame: &str) -> String {
    let lines: String = frame.lines().map(|line| format!("{line}{WIPE_LINE}")).collect();
    format!("{HOME}{lines}{WIPE_BELOW}")
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
        "export {}: {}{}{}, {}, {} in flight",
        names.join(", "),
        device.state.name(),
        if device.loss.is_none() { "" } else { ", flushes and writes fail (see status)" },
        if device.refused_write.is_none() { "" } else { ", writes fail (see status)" },
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

    #[test]
    fn drawn_frame_wipes_what_was_longer() {
        assert_eq!(drawn("a\nb\n"), "\u{1b}[Ha\u{1b}[K\nb\u{1b}[K\n\u{1b}[J");
    }
}
