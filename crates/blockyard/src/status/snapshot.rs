//! A snapshot of a volume: each counter is read once.

use std::time::SystemTime;

use blockyard_engine::bio::{BlkStatus, Op};
use blockyard_engine::dm::crypt::pipeline::Tally;
use blockyard_host::cpus;
use blockyard_host::dirty_bitmap::DirtyBitmapStatus;
use blockyard_host::footprint::Footprint;
use blockyard_host::protect;
use blockyard_host::sandbox;
use blockyard_host::stages::{self, KindTimes, RequestKind, Stage};
use blockyard_host::usage::Usage;
use blockyard_host::volume::Volume;
use blockyard_host::volume::control::{
    AdaptiveStatus, Counts as HostCounts, LostServer as HostLostServer, Status as HostStatus,
};
use blockyard_host::{RingKind, ring_kind};

use super::{
    Activity, Adaptive, Bios, Build, Ciphers, Counts, DirtyBitmap, ErrorClasses, KeyState,
    KindRequests, Loss, LostServer, Parts, Paths, Placement, Process, RefusedWrite, Requests,
    Rings, Sandbox, StageTimes, State, Status, Threads, VolumeStatus, Work,
};

impl Status {
    /// The status of a server in this process, without closed exports.
    pub(crate) fn new(build: Build, max_connections: usize, devices: Vec<VolumeStatus>) -> Self {
        let io_uring = match ring_kind() {
            RingKind::Restricted => Rings::Restricted,
            RingKind::Unrestricted => Rings::Unrestricted,
            RingKind::Unavailable => Rings::Unavailable,
        };
        let sandbox = sandbox::parts().map(|sandbox::Parts { landlock, seccomp }| Sandbox {
            landlock,
            seccomp,
            no_new_privileges: true,
        });
        let max_connections = max_connections as u64;
        let process = Process::now();
        let placement = Placement::now();
        let closed = Vec::new();
        Self { max_connections, io_uring, sandbox, build, process, placement, devices, closed }
    }
}

impl Process {
    fn now() -> Self {
        let Footprint { open_descriptors, max_descriptors, resident_bytes, started_at_unix_s } =
            Footprint::of_process();
        let usage = Usage::of_process();
        let cpu_ns = usage.user.0 + usage.system.0;
        Self { started_at_unix_s, cpu_ns, resident_bytes, open_descriptors, max_descriptors }
    }
}

impl Placement {
    fn now() -> Self {
        Self {
            cpus: cpus::as_list(&cpus::allowed()),
            quota_cpus: cpus::quota().map(|quota| quota as u64),
            memory_node: cpus::memory_node(),
        }
    }
}

impl VolumeStatus {
    /// The status of a controlled volume, whose requests are counted.
    pub(crate) fn of(volume: &Volume, exports: &[String]) -> Self {
        let status = volume.status();
        let lines = |text: &str| text.lines().map(str::to_owned).collect();
        let requests = Requests::of_volume(volume, |kind, _| counted(&status, kind));
        Self {
            exports: exports.to_vec(),
            size_bytes: volume.size_bytes(),
            state: if status.is_suspended { State::Suspended } else { State::Active },
            key: if status.has_keys { KeyState::Valid } else { KeyState::Wiped },
            loss: status.loss.as_ref().map(Loss::from),
            lost_servers: status.lost_servers.iter().map(LostServer::from).collect(),
            refused_write: status.refused_write.map(RefusedWrite::from),
            dirty_bitmap: volume.dirty_bitmap().map(DirtyBitmap::from),
            limits: Vec::new(),
            table: lines(&status.table),
            status: lines(&status.targets),
            paths: Paths { total: status.paths.total as u64, failed: status.paths.failed as u64 },
            counts: Counts::of(&status),
            pipelines: status.pipelines,
            adaptive: status.adaptive.into_iter().map(Adaptive::from).collect(),
            activity: Activity::of(volume, requests),
        }
    }
}

impl From<DirtyBitmapStatus> for DirtyBitmap {
    fn from(status: DirtyBitmapStatus) -> Self {
        let DirtyBitmapStatus { name, granularity_bytes, dirty_bytes, backup } = status;
        let (frozen_bytes, backup) = backup.map(|it| (it.bytes, it.id.to_string())).unzip();
        Self { name, granularity_bytes, dirty_bytes, frozen_bytes, backup }
    }
}

impl Activity {
    /// The activity of a volume without counters: numbers are estimated from the samples.
    pub(crate) fn estimated(volume: &Volume) -> Self {
        let requests = Requests::of_volume(volume, |_, requests| KindRequests {
            requests,
            ..KindRequests::default()
        });
        Self::of(volume, requests)
    }

    fn of(volume: &Volume, requests: Requests) -> Self {
        let threads = volume.threads().iter().map(Threads::from).collect();
        let mut activity = Self { requests, threads, limit: None };
        activity.limit = activity.limit_since(&Self::default());
        activity
    }
}

impl Requests {
    /// `count` returns the counts of a kind; it receives the estimate from the samples.
    fn of_volume(volume: &Volume, count: impl Fn(RequestKind, u64) -> KindRequests) -> Self {
        let times = volume.stage_times();
        let every = u64::from(times.every);
        let [read, write, flush, other] = times.kinds;
        let kind = |kind, times: KindTimes| {
            let KindTimes { stages, total } = times;
            let sampled = total.count() * every;
            KindRequests {
                total: total.into(),
                stages: StageTimes::from(stages),
                ..count(kind, sampled)
            }
        };
        Self {
            sampled_every: every,
            occupied_ns: times.occupied.0,
            connected_ns: times.connected.0,
            workers_busy_ns: times.workers_busy.0,
            device_queue: volume.has_device_queue(),
            read: kind(RequestKind::Read, read),
            write: kind(RequestKind::Write, write),
            flush: kind(RequestKind::Flush, flush),
            other: kind(RequestKind::Other, other),
            flush_times: times.flushes.into(),
        }
    }
}

fn counted(status: &HostStatus, kind: RequestKind) -> KindRequests {
    let HostCounts { reads, writes, flushes, others, .. } = status.counts;
    let Tally { parts, bytes } = match kind {
        RequestKind::Read => reads,
        RequestKind::Write => writes,
        RequestKind::Flush => Tally { parts: flushes, bytes: 0 },
        RequestKind::Other => others,
    };
    let error_classes = ErrorClasses::of(status, kind);
    let errors = error_classes.named().iter().map(|(_, count)| count).sum();
    KindRequests { requests: parts, bytes, errors, error_classes, ..KindRequests::default() }
}

impl ErrorClasses {
    fn of(status: &HostStatus, kind: RequestKind) -> Self {
        let mut classes = Self::default();
        for op in Op::ALL.into_iter().filter(|op| RequestKind::of(*op) == kind) {
            classes.refused += status.errors.refused.of(op).iter().sum::<u64>();
            let executed = status.errors.executed.of(op);
            for (failure, count) in BlkStatus::FAILURES.into_iter().zip(executed) {
                *match failure {
                    BlkStatus::NotSupported => &mut classes.unsupported,
                    BlkStatus::NoSpace => &mut classes.no_space,
                    BlkStatus::Invalid => &mut classes.invalid,
                    BlkStatus::Transport => &mut classes.transport,
                    BlkStatus::Medium => &mut classes.medium,
                    BlkStatus::IoError => &mut classes.io,
                    BlkStatus::Ok => unreachable!("no failure"),
                } += count;
            }
        }
        classes
    }
}

impl From<[stages::Times; Stage::ALL.len()]> for StageTimes {
    fn from(times: [stages::Times; Stage::ALL.len()]) -> Self {
        let [throttle, queue, cipher_wait, cipher, submit_wait, device, completion] =
            times.map(Into::into);
        Self { throttle, queue, cipher_wait, cipher, submit_wait, device, completion }
    }
}

impl Counts {
    fn of(HostStatus { counts, errors, connections, .. }: &HostStatus) -> Self {
        let parts = |Tally { parts, bytes }| Parts { parts, bytes };
        let bios = |Tally { parts, bytes }| Bios { bios: parts, bytes };
        Self {
            ciphers: Ciphers {
                inline: parts(counts.decisions.inline),
                fanned_out: parts(counts.decisions.fanned_out),
                sorted: parts(counts.decisions.sorted),
            },
            reads: bios(counts.reads),
            writes: bios(counts.writes),
            other_bios: counts.flushes + counts.others.parts,
            errors: errors.total(),
            held_bios: counts.held,
            parked_parts: counts.parked,
            connections: *connections as u64,
            in_flight: counts.in_flight,
        }
    }
}

impl From<&blockyard_host::durability::Loss> for Loss {
    fn from(loss: &blockyard_host::durability::Loss) -> Self {
        Self {
            device: loss.device.clone(),
            problem: loss.problem.clone(),
            at_unix_s: unix_s(loss.at),
            status: loss.status.to_string(),
        }
    }
}

impl From<&HostLostServer> for LostServer {
    fn from(lost: &HostLostServer) -> Self {
        let HostLostServer { device, is_path, since } = lost;
        Self {
            server: device.display().to_string(),
            is_path: *is_path,
            since_unix_s: unix_s(*since),
        }
    }
}

impl From<protect::RefusedWrite> for RefusedWrite {
    fn from(refused: protect::RefusedWrite) -> Self {
        let protect::RefusedWrite { sector, sectors, at } = refused;
        Self { sector, sectors, at_unix_s: unix_s(at) }
    }
}

fn unix_s(at: SystemTime) -> u64 {
    at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

impl From<AdaptiveStatus> for Adaptive {
    fn from(status: AdaptiveStatus) -> Self {
        let AdaptiveStatus { cipher_ns, part_bytes, hand_over_ns, fan_out_min_bytes, seeks } =
            status;
        Self { cipher_ns, part_bytes, hand_over_ns, fan_out_min_bytes, seeks }
    }
}

impl From<&stages::Threads> for Threads {
    fn from(threads: &stages::Threads) -> Self {
        let work = match threads.work {
            stages::Work::Connections => Work::Connections,
            stages::Work::Workers => Work::Workers,
            stages::Work::Disks => Work::Disks,
        };
        Self {
            work,
            count: threads.threads as u64,
            cpu_ns: threads.usage.cpu.0,
            runnable_ns: threads.usage.runnable.0,
            voluntary_switches: threads.usage.voluntary,
            involuntary_switches: threads.usage.involuntary,
            pool: threads.pool,
        }
    }
}
