//! Times of requests, by kind and stage.

use blockyard_host::stages::{self, RequestKind, Stage};
use serde::{Deserialize, Serialize};

use super::since;
use crate::limit::Load;

/// Requests by kind and stage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Requests {
    /// Mean sampling interval in requests.
    pub sampled_every: u64,
    /// Time with at least one connection.
    pub occupied_ns: u64,
    /// Sum of the times of all connections.
    pub connected_ns: u64,
    /// Time in which workers had jobs of any volume, all workers together, while this volume had a
    /// connection.
    pub workers_busy_ns: u64,
    /// Whether requests pass the queue of a device.
    pub device_queue: bool,
    /// Reads.
    pub read: KindRequests,
    /// Writes.
    pub write: KindRequests,
    /// Flushes.
    pub flush: KindRequests,
    /// Discards and zeroes.
    pub other: KindRequests,
    /// Each successful flush, without its wait at a gate: no sample.
    pub flush_times: Times,
}

/// Requests of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KindRequests {
    /// Number.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Number of failures.
    pub errors: u64,
    /// The failures by class.
    pub error_classes: ErrorClasses,
    /// Time from reception until the outcome was taken.
    pub total: Times,
    /// Time by stage.
    pub stages: StageTimes,
}

/// Failed requests by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct ErrorClasses {
    /// A device does not have the operation.
    pub unsupported: u64,
    /// A device is full.
    pub no_space: u64,
    /// The range is outside of a device, or not aligned to its sectors.
    pub invalid: u64,
    /// The connection to a device is lost.
    pub transport: u64,
    /// The medium of a device failed.
    pub medium: u64,
    /// Other errors of a device, and writes to protected sectors.
    pub io: u64,
    /// Never executed, because acknowledged writes may be lost, or because the server ended.
    pub refused: u64,
}

impl ErrorClasses {
    /// Each class with its name in JSON and metrics.
    #[must_use]
    pub fn named(&self) -> [(&'static str, u64); 7] {
        [
            ("unsupported", self.unsupported),
            ("no-space", self.no_space),
            ("invalid", self.invalid),
            ("transport", self.transport),
            ("medium", self.medium),
            ("io", self.io),
            ("refused", self.refused),
        ]
    }
}

/// Times of requests by stage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct StageTimes {
    /// Waiting for tokens of a rate limit.
    pub throttle: Times,
    /// Received, at the gate, plugged, with an elevator, or without a tag.
    pub queue: Times,
    /// Waiting for the cipher.
    pub cipher_wait: Times,
    /// In the cipher.
    pub cipher: Times,
    /// Encrypted, and not submitted.
    pub submit_wait: Times,
    /// At the device.
    pub device: Times,
    /// Done, and the outcome was not taken.
    pub completion: Times,
}

/// Times of sampled requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Times {
    /// Number of samples.
    pub samples: u64,
    /// Sum.
    pub sum_ns: u64,
    /// Mean.
    pub mean_ns: f64,
    /// Median.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// Maximum.
    pub max_ns: u64,
    /// Histogram for metrics. JSON does not contain it: a parsed status has an empty one.
    #[serde(skip)]
    pub histogram: stages::Times,
}

/// Division of a request's time.
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
            Stage::Throttle => &self.throttle,
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
    pub fn of(&self, kind: RequestKind) -> &KindRequests {
        match kind {
            RequestKind::Read => &self.read,
            RequestKind::Write => &self.write,
            RequestKind::Flush => &self.flush,
            RequestKind::Other => &self.other,
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

    /// Number of connections since `earlier`, and the mean of requests in flight of each.
    #[must_use]
    pub fn in_flight_since(&self, earlier: &Self) -> (f64, f64) {
        let connected_ns = since(self.connected_ns, earlier.connected_ns).max(1.0);
        let occupied_ns = since(self.occupied_ns, earlier.occupied_ns).max(1.0);
        (connected_ns / occupied_ns, self.load_since(earlier).in_flight)
    }

    /// Input of the rule for the limit, without threads.
    pub(crate) fn load_since(&self, earlier: &Self) -> Load {
        let mut requests = 0.0;
        let mut stages_ns = [0.0; Stage::ALL.len()];
        let none = KindRequests::default();
        for kind in RequestKind::ALL {
            let now = self.of(kind);
            let mut before = earlier.of(kind);
            let of_kind = since(now.requests, before.requests);
            // Without new samples, the mean of all earlier ones counts.
            if now.total.samples <= before.total.samples {
                before = &none;
            }
            let samples = since(now.total.samples, before.total.samples);
            if samples > 0.0 {
                requests += of_kind;
                for (all_ns, stage) in stages_ns.iter_mut().zip(Stage::ALL) {
                    let now = now.stages.of(stage);
                    let before = before.stages.of(stage);
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
