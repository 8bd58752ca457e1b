//! A server that runs: what its clients wait for, by two statuses of `serve --control`, one some
//! time after the other.

use std::path::Path;

use blockyard::Status;
use blockyard::limit::{Limit, Party};
use blockyard::status::{Activity, KeyState, Loss, State, VolumeStatus};

use super::{Finding, Grade, quoted};
use crate::failure::printable;

/// So much of a CPU has to be idle before another connection is of use. Ours.
const IDLE_CPUS_MIN: f64 = 0.5;
/// More requests of one connection wait for each other. Ours.
const IN_FLIGHT_MIN: f64 = 2.0;
/// Who is mended by another connection: each has a thread.
const OF_ONE_THREAD: [Party; 4] =
    [Party::Cipher, Party::Receiving, Party::Completion, Party::Submission];

/// What was seen of a server.
pub(crate) struct Looks<'a> {
    /// Its control socket.
    pub(crate) socket: &'a Path,
    pub(crate) now: &'a Status,
    pub(crate) before: &'a Status,
    /// CPUs of the machine that had nothing to do in between, in the mean.
    pub(crate) idle_cpus: f64,
}

/// All about it and its volumes.
pub(crate) fn findings(looks: &Looks<'_>) -> Vec<Finding> {
    let mut findings: Vec<Finding> = looks.full().into_iter().collect();
    for (device, before) in looks.now.with_earlier(looks.before) {
        let export = Export { looks, device, before };
        let all =
            [export.lost(), export.errors(), export.waiting(), export.wiped(), export.parked()];
        findings.extend(all.into_iter().flatten());
        findings.extend(export.limit());
    }
    findings
}

impl Looks<'_> {
    /// No client more gets a place.
    fn full(&self) -> Option<Finding> {
        let max = self.now.max_connections;
        let taken: u64 = self.now.devices.iter().map(|device| device.counts.connections).sum();
        (taken >= max).then(|| {
            Finding::new(
                Grade::Slow,
                self.socket.display().to_string(),
                format!("all {max} connections are taken: who comes now waits for one to end"),
                format!("blockyard serve --max-connections {}", max.saturating_mul(2).min(1024)),
            )
        })
    }
}

/// One volume.
struct Export<'a> {
    looks: &'a Looks<'a>,
    device: &'a VolumeStatus,
    before: Option<&'a VolumeStatus>,
}

impl Export<'_> {
    fn finding(&self, grade: Grade, seen: &str, mend: impl Into<String>) -> Finding {
        let name = self.name();
        Finding::new(grade, printable(&format!("export {name:?}")), printable(seen), mend)
    }

    fn name(&self) -> &str {
        self.device.exports.first().map_or("", String::as_str)
    }

    /// A command for the control socket.
    fn command(&self, verb: &str, rest: &str) -> String {
        let of = match self.name() {
            "" => String::new(),
            name => format!(" --export {}", quoted(name.as_ref())),
        };
        let socket = quoted(self.looks.socket);
        printable(format!("blockyard {verb} {socket}{of} {rest}").trim_end())
    }

    fn lost(&self) -> Option<Finding> {
        let Loss { device, problem, .. } = self.device.loss.as_ref()?;
        let seen = format!(
            "acknowledged writes may be lost, so flushes and writes fail: {device}: {problem}"
        );
        let (suspend, resume) =
            (self.command("suspend", ""), self.command("resume", "--accept-loss"));
        let mend = format!(
            "stop the clients, look at the disk, then: {suspend} && {resume}; then check the \
             contents (fsck)"
        );
        Some(self.finding(Grade::Risky, &seen, mend))
    }

    fn errors(&self) -> Option<Finding> {
        let errors = self.device.counts.errors;
        (errors > 0).then(|| {
            let seen = format!("{errors} requests have failed since it was opened");
            let mend = "dmesg, and smartctl -a on the disk below: copy what can be read first";
            self.finding(Grade::Risky, &seen, mend)
        })
    }

    fn waiting(&self) -> Option<Finding> {
        let held = self.device.counts.held_bios;
        let is_suspended = self.device.state == State::Suspended;
        (is_suspended || held > 0).then(|| {
            let seen = format!("it is suspended, and {held} requests wait for a resume");
            self.finding(Grade::Slow, &seen, self.command("resume", ""))
        })
    }

    fn wiped(&self) -> Option<Finding> {
        (self.device.key == KeyState::Wiped).then(|| {
            let seen = "its key is wiped: nothing is read or written until it has one";
            self.finding(Grade::Slow, seen, self.command("message", "key set"))
        })
    }

    fn parked(&self) -> Option<Finding> {
        let parked = self.device.counts.parked_parts;
        let has = |target: &str| {
            let mut lines = self.device.table.iter();
            lines.any(|line| line.split(' ').nth(2) == Some(target))
        };
        let (what, mend) = match () {
            () if has("multipath") => {
                let mend = self.command("message", "reinstate_path DEVICE");
                ("a path; blockyard status shows which have failed", mend)
            }
            // They are to wait there.
            () if has("delay") => return None,
            () => {
                let mend = "fewer connections (--max-connections): they share the buffers";
                ("a buffer", mend.to_owned())
            }
        };
        (parked > 0).then(|| {
            let seen = format!("{parked} parts of requests wait for {what}");
            self.finding(Grade::Slow, &seen, mend)
        })
    }

    /// Who limits: as of now, or since the start if nothing was asked for meanwhile.
    fn limit(&self) -> Option<Finding> {
        let (activity, start) = (&self.device.activity, Activity::default());
        let before = self.before.map(|before| &before.activity);
        let now = before.and_then(|before| Some((activity.limit_since(before)?, before, true)));
        let since_start = || Some((activity.limit_since(&start)?, &start, false));
        let (Limit { party, saw, change }, before, is_now) = now.or_else(since_start)?;
        let when = if is_now { "now" } else { "since the start" };
        let seen = format!("{} limits {when}: {saw}", party.name());
        let (connections, in_flight) = activity.requests.in_flight_since(&before.requests);
        let idle_cpus = self.looks.idle_cpus;
        let is_few = OF_ONE_THREAD.contains(&party)
            && is_now
            && in_flight >= IN_FLIGHT_MIN
            && idle_cpus >= IDLE_CPUS_MIN;
        if !is_few {
            return Some(self.finding(Grade::Note, &seen, change));
        }
        let seen = format!(
            "too few connections: {connections:.0}, with {in_flight:.1} requests in flight each, \
             while {idle_cpus:.1} CPUs are idle; {seen}"
        );
        let mend = "more connections, each has a thread: nbd-client -connections 4, nbdcopy \
                    --connections=4, multi-conn=on in QEMU, connections=4 in a URI of blockyard";
        Some(self.finding(Grade::Slow, &seen, mend))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A second of a volume, in which each of 1000 requests took so long in the cipher, and waited
    /// nine times as long for those before it.
    fn device(more: &Value, seconds: u64, cipher_us: u64) -> Value {
        let requests = 1000 * seconds;
        let times = |us: u64| json!({ "samples": requests, "sum_ns": us * 1000 * requests });
        let mut device = json!({
            "exports": ["my disk"], "state": "active", "key": "valid", "errors": 0,
            "held_bios": 0, "parked_parts": 0, "connections": 1, "table": ["0 8 crypt - a 0 1"],
            "threads": [{ "threads": "connections", "cpu_ns": seconds * 1_000_000_000 }],
            "requests": {
                "occupied_ns": seconds * 1_000_000_000, "connected_ns": seconds * 1_000_000_000,
                "read": {
                    "requests": requests, "total": times(10 * cipher_us),
                    "stages": { "queue": times(9 * cipher_us), "cipher": times(cipher_us) },
                },
            },
        });
        for (key, value) in more.as_object().unwrap() {
            device[key] = value.clone();
        }
        device
    }

    fn found(more: &Value, cipher_us: u64, idle_cpus: f64) -> Vec<(Grade, String, String)> {
        let status = |seconds| {
            let device = device(more, seconds, cipher_us);
            let status = json!({ "max_connections": 16, "devices": [device] }).to_string();
            Status::parse(status.as_bytes()).unwrap()
        };
        let (before, now) = (status(1), status(2));
        let socket = Path::new("home.ctl");
        let findings = findings(&Looks { socket, now: &now, before: &before, idle_cpus });
        findings.into_iter().map(|one| (one.grade, one.seen, one.mend)).collect()
    }

    #[test]
    fn one_connection_whose_thread_limits_is_too_few_while_a_cpu_is_idle() {
        for (cipher_us, idle_cpus, grade, seen) in [
            (900, 1.2, Grade::Slow, "too few connections: 1, with 9.0 requests in flight each"),
            (900, 0.1, Grade::Note, "the cipher limits now"),
            (20, 1.2, Grade::Note, "the client limits now"),
        ] {
            let findings = found(&json!({}), cipher_us, idle_cpus);
            assert_eq!(findings.len(), 1, "{findings:?}");
            assert!(findings[0].0 == grade && findings[0].1.contains(seen), "{findings:?}");
        }
    }

    #[test]
    fn each_thing_that_requests_wait_for_has_its_command() {
        let multipath = json!(["0 8 multipath 0 0 1 1 round-robin 0 1 0 8:0"]);
        for (more, grade, seen, mend) in [
            (json!({ "errors": 3 }), Grade::Risky, "3 requests have failed", "dmesg"),
            (
                json!({ "state": "suspended", "held_bios": 2 }),
                Grade::Slow,
                "2 requests wait",
                "blockyard resume home.ctl --export 'my disk'",
            ),
            (json!({ "key": "wiped" }), Grade::Slow, "key is wiped", "'my disk' key set"),
            (json!({ "parked_parts": 4 }), Grade::Slow, "4 parts", "fewer connections"),
            (
                json!({ "parked_parts": 4, "table": multipath }),
                Grade::Slow,
                "wait for a path",
                "reinstate_path",
            ),
            (json!({ "connections": 16 }), Grade::Slow, "all 16", "--max-connections 32"),
        ] {
            let findings = found(&more, 20, 0.0);
            assert_eq!(findings.len(), 2, "besides the limit: {findings:?}");
            let one = &findings[0];
            assert!(one.0 == grade && one.1.contains(seen) && one.2.contains(mend), "{one:?}");
        }
        let waits = json!({ "parked_parts": 4, "table": ["0 8 delay a 0 5"] });
        assert_eq!(found(&waits, 20, 0.0).len(), 1);
    }
}
