//! A running server: causes of its clients' waits, from two successive statuses.

use std::path::Path;

use super::{Fact, Finding, Subject};
use crate::limit::Party;
use crate::status::{Activity, KeyState, State, VolumeStatus};
use crate::{RequestKind, Status};

/// Another connection helps only if this much of a CPU is idle. Ours.
const IDLE_CPUS_MIN: f64 = 0.5;
/// Above this number, requests of one connection wait for each other. Ours.
const IN_FLIGHT_MIN: f64 = 2.0;
/// Limits that another connection raises: each has a thread.
const OF_ONE_THREAD: [Party; 4] =
    [Party::Cipher, Party::Receiving, Party::Completion, Party::Submission];

/// Two statuses of a server.
pub(super) struct Looks<'a> {
    /// Its control socket.
    pub(super) socket: &'a Path,
    pub(super) now: &'a Status,
    pub(super) before: &'a Status,
    /// Mean number of idle CPUs between them.
    pub(super) idle_cpus: f64,
}

/// All findings of the server and its volumes.
pub(super) fn findings(looks: &Looks<'_>) -> Vec<Finding> {
    let subject = || Subject::Server(looks.socket.to_owned());
    let full = looks.full().map(|fact| Finding::new(subject(), fact));
    let mut findings: Vec<Finding> = full.into_iter().collect();
    for (device, before) in looks.now.with_earlier(looks.before) {
        let socket = looks.socket.to_owned();
        let name = device.exports.first().cloned();
        let subject = Subject::Export { socket, name: name.unwrap_or_default() };
        let export = Export { device, before, idle_cpus: looks.idle_cpus };
        let facts = export.facts().into_iter();
        findings.extend(facts.map(|fact| Finding::new(subject.clone(), fact)));
    }
    findings
}

impl Looks<'_> {
    /// The limit of connections is reached.
    fn full(&self) -> Option<Fact> {
        let max = self.now.max_connections;
        let taken: u64 = self.now.devices.iter().map(|device| device.counts.connections).sum();
        (taken >= max).then_some(Fact::ConnectionsTaken { max })
    }
}

/// One volume.
struct Export<'a> {
    device: &'a VolumeStatus,
    before: Option<&'a VolumeStatus>,
    idle_cpus: f64,
}

impl Export<'_> {
    fn facts(&self) -> Vec<Fact> {
        let counts = &self.device.counts;
        let transport = RequestKind::ALL
            .map(|kind| self.device.activity.requests.of(kind).error_classes.transport);
        let errors = Fact::Errors { requests: counts.errors, transport: transport.iter().sum() };
        let refused = self.device.refused_write;
        let held = counts.held_bios;
        let is_suspended = self.device.state == State::Suspended;
        let servers = self.device.lost_servers.iter().cloned().map(Fact::ServerLost);
        let loss = self.device.loss.clone().map(Fact::Lost);
        let facts = [
            refused.map(Fact::WriteRefused),
            // The refused writes are among the errors, and no sign of a bad disk.
            (counts.errors > 0 && refused.is_none()).then_some(errors),
            (is_suspended || held > 0).then_some(Fact::Suspended { requests: held }),
            (self.device.key == KeyState::Wiped).then_some(Fact::KeyWiped),
            self.parked(),
            self.limit(),
        ];
        loss.into_iter().chain(servers).chain(facts.into_iter().flatten()).collect()
    }

    fn parked(&self) -> Option<Fact> {
        let parts = self.device.counts.parked_parts;
        let has = |target: &str| {
            let mut lines = self.device.table.iter();
            lines.any(|line| line.split(' ').nth(2) == Some(target))
        };
        match parts {
            0 => None,
            _ if has("multipath") => Some(Fact::PathMissing { parts }),
            // A delay holds requests on purpose.
            _ if has("delay") => None,
            _ => Some(Fact::BuffersTaken { parts }),
        }
    }

    /// The limit: as of now, or since the start if there were no requests meanwhile.
    fn limit(&self) -> Option<Fact> {
        let activity = &self.device.activity;
        let start = Activity::default();
        let before = self.before.map(|before| &before.activity);
        let now = before.and_then(|before| Some((activity.limit_since(before)?, before, true)));
        let since_start = || Some((activity.limit_since(&start)?, &start, false));
        let (limit, before, is_now) = now.or_else(since_start)?;
        let (connections, in_flight) = activity.requests.in_flight_since(&before.requests);
        let idle_cpus = self.idle_cpus;
        let is_few = OF_ONE_THREAD.contains(&limit.party)
            && is_now
            && in_flight >= IN_FLIGHT_MIN
            && idle_cpus >= IDLE_CPUS_MIN;
        Some(if is_few {
            Fact::FewConnections { connections, in_flight, idle_cpus, limit }
        } else {
            Fact::Limited { limit, is_now }
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::status::{LostServer, RefusedWrite};

    /// One second of a volume with 1000 requests; each spends this time in the cipher, after
    /// waiting nine times as long for earlier ones.
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

    fn found(more: &Value, cipher_us: u64, idle_cpus: f64) -> Vec<Finding> {
        let status = |seconds| {
            let device = device(more, seconds, cipher_us);
            let status = json!({ "max_connections": 16, "devices": [device] }).to_string();
            Status::parse(status.as_bytes()).unwrap()
        };
        let before = status(1);
        let now = status(2);
        let socket = Path::new("home.ctl");
        findings(&Looks { socket, now: &now, before: &before, idle_cpus })
    }

    #[test]
    fn one_connection_whose_thread_limits_is_too_few_while_a_cpu_is_idle() {
        let one = |cipher_us, idle_cpus| {
            let findings = found(&json!({}), cipher_us, idle_cpus);
            assert_eq!(findings.len(), 1, "{findings:?}");
            let name = "my disk".to_owned();
            assert_eq!(findings[0].subject, Subject::Export { socket: "home.ctl".into(), name });
            findings[0].fact.clone()
        };
        let few = one(900, 1.2);
        let Fact::FewConnections { connections, in_flight, idle_cpus, limit } = few else {
            panic!("{few:?}");
        };
        assert_eq!((connections, in_flight.round(), idle_cpus), (1.0, 9.0, 1.2));
        assert_eq!(limit.party, Party::Cipher);
        for (cipher_us, idle_cpus, party) in [(900, 0.1, Party::Cipher), (20, 1.2, Party::Client)] {
            let limited = one(cipher_us, idle_cpus);
            let Fact::Limited { limit, is_now: true } = limited else { panic!("{limited:?}") };
            assert_eq!(limit.party, party);
        }
    }

    #[test]
    fn each_cause_of_a_wait_is_a_finding() {
        let multipath = json!(["0 8 multipath 0 0 1 1 round-robin 0 1 0 8:0"]);
        for (more, wanted) in [
            (json!({ "errors": 3 }), Fact::Errors { requests: 3, transport: 0 }),
            (
                json!({ "refused_write": { "sector": 8, "sectors": 1, "at_unix_s": 7 } }),
                Fact::WriteRefused(RefusedWrite { sector: 8, sectors: 1, at_unix_s: 7 }),
            ),
            (
                json!({ "lost_servers": [{ "server": "nbd://a" }] }),
                Fact::ServerLost(LostServer { server: "nbd://a".into(), ..LostServer::default() }),
            ),
            (json!({ "state": "suspended", "held_bios": 2 }), Fact::Suspended { requests: 2 }),
            (json!({ "key": "wiped" }), Fact::KeyWiped),
            (json!({ "parked_parts": 4 }), Fact::BuffersTaken { parts: 4 }),
            (json!({ "parked_parts": 4, "table": multipath }), Fact::PathMissing { parts: 4 }),
            (json!({ "connections": 16 }), Fact::ConnectionsTaken { max: 16 }),
        ] {
            let findings = found(&more, 20, 0.0);
            assert_eq!(findings.len(), 2, "besides the limit: {findings:?}");
            assert_eq!(findings[0].fact, wanted);
        }
        let waits = json!({ "parked_parts": 4, "table": ["0 8 delay a 0 5"] });
        assert_eq!(found(&waits, 20, 0.0).len(), 1);
    }
}
