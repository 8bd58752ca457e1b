//! Where the time of requests went, by kind and stage.

use blockyard_host::stages::{self, Kind, Stage};
use serde::{Deserialize, Serialize};

use super::since;
use crate::limit::Load;

/// Requests by kind and stage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Requests {
    /// The time of one request of so many was kept, in the mean.
    pub sampled_every: u64,
    /// Time in which the volume had a connection.
    pub occupied_ns: u64,
    /// Time that connections were there, all together.
    pub connected_ns: u64,
    /// Requests pass the queue of a device.
    pub device_queue: bool,
    /// Reads.
    pub read: KindRequests,
    /// Writes.
    pub write: KindRequests,
    /// Flushes.
    pub flush: KindRequests,
    /// Discards and zeroes.
    pub other: KindRequests,
}

/// Requests of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KindRequests {
    /// How many.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How many failed.
    pub errors: u64,
    /// From when a request came until its outcome was taken.
    pub total: Times,
    /// The same by stage.
    pub stages: StageTimes,
}

/// The time of requests in each stage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct StageTimes {
    /// Received, at the gate, plugged, with an elevator, or without a tag.
    pub queue: Times,
    /// In front of the cipher.
    pub cipher_wait: Times,
    /// In the cipher.
    pub cipher: Times,
    /// Encrypted, and not submitted.
    pub submit_wait: Times,
    /// With the device.
    pub device: Times,
    /// Done, and the outcome not taken.
    pub completion: Times,
}

/// Times of the requests that were sampled.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Times {
    /// How many.
    pub samples: u64,
    /// Their sum.
    pub sum_ns: u64,
    /// Their mean.
    pub mean_ns: f64,
    /// The median.
    pub p50_ns: u64,
    /// 99 of 100 took no longer.
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// All of them, for metrics. JSON does not have it: a parsed status has an empty one.
    #[serde(skip)]
    pub histogram: stages::Times,
}

/// How the time of a request is divided.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shares {
    /// Share of each stage, in the order of [`Stage::ALL`].
    pub stages: [f64; Stage::ALL.len()],
    /// Mean time of a request.
    pub mean_ns: f64,
}

impl From<stages::Times> for Times {
    fn from(histogram: stages::Times) -> Self {
        Self {
            samples: histogram.count(),
            sum_ns: u64::try_from(histogram.sum_ns()).unwrap_or(u64::MAX),
            mean_ns: histogram.mean_ns(),
            p50_ns: histogram.permille_within(500).0,
            p99_ns: histogram.permille_within(990).0,
            max_ns: histogram.max().0,
            histogram,
        }
    }
}

impl StageTimes {
    /// The times in a stage.
    #[must_use]
    pub fn of(&self, stage: Stage) -> &Times {
        match stage {
            Stage::Queue => &self.queue,
            Stage::CipherWait => &self.cipher_wait,
            Stage::Cipher => &self.cipher,
            Stage::SubmitWait => &self.submit_wait,
            Stage::Device => &self.device,
            Stage::Completion => &self.completion,
        }
    }
}

impl Requests {
    /// The requests of a kind.
    #[must_use]
    pub fn of(&self, kind: Kind) -> &KindRequests {
        match kind {
            Kind::Read => &self.read,
            Kind::Write => &self.write,
            Kind::Flush => &self.flush,
            Kind::Other => &self.other,
        }
    }

    /// Shares of the stages since `earlier`, and the mean time.
    #[must_use]
    pub fn shares_since(&self, earlier: &Self) -> Shares {
        let Load { stages_ns, .. } = self.load_since(earlier);
        let mean_ns: f64 = stages_ns.iter().sum();
        let share = |ns: f64| if mean_ns > 0.0 { ns / mean_ns } else { 0.0 };
        Shares { stages: stages_ns.map(share), mean_ns }
    }

    /// Connections since `earlier`, and requests in flight of each, in the mean.
    #[must_use]
    pub fn in_flight_since(&self, earlier: &Self) -> (f64, f64) {
        let connected_ns = since(self.connected_ns, earlier.connected_ns).max(1.0);
        let occupied_ns = since(self.occupied_ns, earlier.occupied_ns).max(1.0);
        (connected_ns / occupied_ns, self.load_since(earlier).in_flight)
    }

    /// What the rule for the limit looks at, without threads.
    pub(crate) fn load_since(&self, earlier: &Self) -> Load {
        let (mut requests, mut stages_ns) = (0.0, [0.0; Stage::ALL.len()]);
        let none = KindRequests::default();
        for kind in Kind::ALL {
            let (now, mut before) = (self.of(kind), earlier.of(kind));
            let of_kind = since(now.requests, before.requests);
            // Of a few requests none may have been sampled: then as all before them.
            if now.total.samples <= before.total.samples {
                before = &none;
            }
            let samples = since(now.total.samples, before.total.samples);
            if samples > 0.0 {
                requests += of_kind;
                for (all_ns, stage) in stages_ns.iter_mut().zip(Stage::ALL) {
                    let (now, before) = (now.stages.of(stage), before.stages.of(stage));
                    *all_ns += since(now.sum_ns, before.sum_ns) / samples * of_kind;
                }
            }
        }
        let connected_ns = since(self.connected_ns, earlier.connected_ns).max(1.0);
        Load {
            in_flight: stages_ns.iter().sum::<f64>() / connected_ns,
            stages_ns: stages_ns.map(|ns| if requests > 0.0 { ns / requests } else { 0.0 }),
            has_device_queue: self.device_queue,
            ..Load::default()
        }
    }
}
