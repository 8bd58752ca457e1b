//! fio's names without a use on a volume: ignored options, and refused options and engines, each
//! with the reason.

use crate::program::Interface;

use Engine::{Asynchronous, Null, Ring, Waiting};

/// Depth of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Engine {
    /// One request at a time.
    Waiting,
    /// `iodepth` requests.
    Asynchronous,
    /// `iodepth` requests, and ended ones in shared memory.
    Ring,
    /// `iodepth` requests that go to no device.
    Null,
}

impl Engine {
    /// System calls of its requests.
    pub(super) fn interface(self) -> Interface {
        match self {
            Waiting => Interface::Sync,
            Asynchronous => Interface::Aio,
            Ring => Interface::Ring,
            Null => Interface::Nowhere,
        }
    }
}

/// Engines that the volume replaces.
const ENGINES: [(&str, Engine); 22] = [
    ("libaio", Asynchronous),
    ("io_uring", Ring),
    ("io_uring_cmd", Ring),
    ("posixaio", Asynchronous),
    ("linuxaio", Asynchronous),
    ("windowsaio", Asynchronous),
    ("solarisaio", Asynchronous),
    ("libblkio", Asynchronous),
    ("xnvme", Asynchronous),
    ("nbd", Asynchronous),
    ("libiscsi", Asynchronous),
    ("rbd", Asynchronous),
    ("psync", Waiting),
    ("sync", Waiting),
    ("vsync", Waiting),
    ("pvsync", Waiting),
    ("pvsync2", Waiting),
    ("mmap", Waiting),
    ("splice", Waiting),
    ("sg", Waiting),
    ("null", Null),
    ("cpp_null", Null),
];

/// Engines for other things than block I/O on a block device.
const OTHER_ENGINES: [(&str, &str); 38] = [
    ("net", "it sends I/O over a network"),
    ("netsplice", "it sends I/O over a network"),
    ("rdma", "it sends I/O over a network"),
    ("librpma_apm_client", "it sends I/O over a network"),
    ("librpma_apm_server", "it sends I/O over a network"),
    ("librpma_gpspm_client", "it sends I/O over a network"),
    ("librpma_gpspm_server", "it sends I/O over a network"),
    ("http", "it uses an object store"),
    ("rados", "it uses an object store"),
    ("dfs", "it uses a file system of its own"),
    ("gfapi", "it uses a file system of its own"),
    ("gfapi_async", "it uses a file system of its own"),
    ("libhdfs", "it uses a file system of its own"),
    ("nfs", "it uses a file system of its own"),
    ("ime_aio", "it uses a file system of its own"),
    ("ime_psync", "it uses a file system of its own"),
    ("ime_psyncv", "it uses a file system of its own"),
    ("cpuio", "it only uses CPU time"),
    ("exec", "it starts a program"),
    ("page_fault", "it touches memory"),
    ("e4defrag", "it moves extents between files"),
    ("falloc", "it allocates extents of files"),
    ("ftruncate", "it truncates files"),
    ("filecreate", "it makes files"),
    ("filestat", "it stats files"),
    ("filedelete", "it removes files"),
    ("fileoperation", "it makes and removes files"),
    ("dircreate", "it makes folders"),
    ("dirstat", "it stats folders"),
    ("dirdelete", "it removes folders"),
    ("dev-dax", "it maps persistent memory"),
    ("libpmem", "it maps persistent memory"),
    ("pmemblk", "it maps persistent memory"),
    ("mtd", "it is for flash memory without a block device"),
    ("libzbc", "a volume has no zones"),
    ("libcufile", "it moves data to a graphics card"),
    ("libhipfile", "it moves data to a graphics card"),
    ("external", "it loads an external plug-in"),
];

const FILES: &str = "all jobs use the volume";
const LENGTH: &str = "the volume has a fixed length";
const NO_CACHE: &str = "only direct=0 or 1 decides about the page cache";
const LISTED: &str = "everything is measured and listed";
const CLOCK: &str = "reading the clock is cheap";
const WORLD: &str = "the system places the clones; in the lab, numa_cpu_nodes and cpus_allowed do";
const DEVICE: &str = "it concerns device-specific commands";

/// Ignored options, and the reasons.
pub(super) const IGNORED: &[(&str, &str)] = &[
    ("filename", FILES),
    ("filename_format", FILES),
    ("directory", FILES),
    ("nrfiles", FILES),
    ("nr_files", FILES),
    ("openfiles", FILES),
    ("file_service_type", FILES),
    ("filetype", FILES),
    ("opendir", FILES),
    ("lockfile", FILES),
    ("unique_filename", FILES),
    ("allow_file_create", FILES),
    ("allow_mounted_write", FILES),
    ("create_serialize", FILES),
    ("create_fsync", FILES),
    ("filesize", LENGTH),
    ("fallocate", LENGTH),
    ("fill_device", "a job without size takes the whole volume"),
    ("fill_fs", "a job without size takes the whole volume"),
    ("file_append", LENGTH),
    ("create_on_open", "the volume exists already"),
    ("overwrite", "the volume exists already"),
    ("unlink", "the volume is never deleted"),
    ("unlink_each_loop", "the volume is never deleted"),
    ("fsync_on_close", "end_fsync flushes at the end of a job"),
    ("end_syncfs", "end_fsync flushes at the end of a job"),
    ("invalidate", NO_CACHE),
    ("fadvise_hint", NO_CACHE),
    ("pre_read", NO_CACHE),
    ("sync_file_range", NO_CACHE),
    ("uncached", NO_CACHE),
    ("nowait", NO_CACHE),
    ("sync", "a write ends in the volume; fsync=1 flushes after each write"),
    ("write_barrier", "fsync flushes"),
    ("atomic", "the volume has ordinary writes only, no atomic ones"),
    ("write_hint", "a volume does not distinguish kinds of data"),
    ("fdp", "a volume does not distinguish kinds of data"),
    ("fdp_pli", "a volume does not distinguish kinds of data"),
    ("dataplacement", "a volume does not distinguish kinds of data"),
    ("plids", "a volume does not distinguish kinds of data"),
    ("thread", "each clone is a thread"),
    ("threads", "each clone is a thread"),
    ("nice", WORLD),
    ("cpus_allowed", WORLD),
    ("cpumask", WORLD),
    ("cpus_allowed_policy", WORLD),
    ("numa_mem_policy", "the system manages memory"),
    ("mem", "the system manages memory"),
    ("iomem", "the system manages memory"),
    ("iomem_align", "buffers are aligned to pages"),
    ("mem_align", "buffers are aligned to pages"),
    ("hugepage-size", "the system manages memory"),
    ("lockmem", "the system manages memory"),
    ("description", "it is a text for readers"),
    ("comm", "it is a text for readers"),
    ("log_prio", "every log line says whether its job is real-time"),
    ("log_entries", "a log grows as needed"),
    ("log_alternate_epoch", "times are from the start of the job"),
    ("log_alternate_epoch_clock_id", "times are from the start of the job"),
    ("log_unix_epoch", "times are from the start of the job"),
    ("log_compression", "logs are text"),
    ("log_compression_cpus", "logs are text"),
    ("log_store_compressed", "logs are text"),
    ("randrepeat", "all runs draw the same numbers; randseed changes them"),
    ("allrandrepeat", "all runs draw the same numbers; randseed changes them"),
    ("random_generator", "random orders are computed and need no memory"),
    ("softrandommap", "random orders are computed and need no memory"),
    ("gtod_cpu", CLOCK),
    ("clocksource", CLOCK),
    ("job_start_clock_id", CLOCK),
    ("io_submit_mode", "a clone submits its own requests"),
    ("serialize_overlap", "overlapping requests keep the order of their submission"),
    ("thinktime_spin", "a clone sleeps during its think time"),
    ("disk_util", "only the kernel's disks have these figures"),
    ("unit_base", LISTED),
    ("unified_rw_reporting", LISTED),
    ("stats", LISTED),
    ("significant_figures", LISTED),
    ("block_error_percentiles", LISTED),
    ("iopsavgtime", "a sample is half a second"),
    ("bwavgtime", "a sample is half a second"),
    ("dedupe_global", "each clone repeats its own data only"),
    ("userspace_reap", "it configures an engine that the volume replaces"),
    ("hipri", "it configures an engine that the volume replaces"),
    ("fixedbufs", "it configures an engine that the volume replaces"),
    ("registerfiles", "it configures an engine that the volume replaces"),
    ("sqthread_poll", "it configures an engine that the volume replaces"),
    ("sqthread_poll_cpu", "it configures an engine that the volume replaces"),
    ("nonvectored", "it configures an engine that the volume replaces"),
    ("force_async", "it configures an engine that the volume replaces"),
    ("libaio_vectored", "it configures an engine that the volume replaces"),
    ("libblkio_driver", FILES),
    ("libblkio_path", FILES),
    ("uri", FILES),
    ("pool", FILES),
    ("rbdname", FILES),
    ("clientname", FILES),
    ("busy_poll", "it configures an engine that the volume replaces"),
    ("cmd_type", DEVICE),
    ("num_range", DEVICE),
    ("readfua", DEVICE),
    ("writefua", DEVICE),
    ("ignore_error", "an error ends its job"),
    ("error_dump", "an error ends its job and is reported"),
    ("read_beyond_wp", "a volume has no zones of its own"),
    ("ignore_zone_limits", "a volume has no zones of its own"),
    ("ioscheduler", "--elevator orders the requests"),
    ("verify_dump", "a mismatch is reported with its offset; nothing is dumped"),
    ("verify_async", "a clone verifies its own reads"),
    ("verify_async_cpus", "a clone verifies its own reads"),
    ("verify_backlog_batch", "all writes since the last check are read back"),
    ("verify_state_save", "verify_only computes a job's writes"),
    ("verify_write_sequence", "a write's number is verified where it is known"),
    ("verify_header_seed", "checksums identify the data"),
    ("verify_policy", "all writes are verified"),
    ("experimental_verify", "all writes are verified"),
];

const REPLAY: &str = "is not supported: `blockyard replay` replays requests";
const TRIMS: &str = "is not supported: use rw=trimwrite or rw=trim";
const RESETS: &str = "is not supported: the next write to a full zone resets it";

/// Options that would change the job and are not supported, and the reasons.
const REFUSED: &[(&str, &str)] = &[
    ("include", "is not supported: put its lines into this file"),
    ("bs_unaligned", "is not for volumes: requests are whole sectors of 512 bytes"),
    ("blocksize_unaligned", "is not for volumes: requests are whole sectors of 512 bytes"),
    ("bs_is_seq_rand", "is not supported: use one job for sequential and one for random requests"),
    ("write_iolog", "is not supported: `blockyard trace` records requests"),
    ("read_iolog", REPLAY),
    ("read_iolog_chunked", REPLAY),
    ("replay_align", REPLAY),
    ("replay_no_stall", REPLAY),
    ("replay_redirect", REPLAY),
    ("replay_scale", REPLAY),
    ("replay_skip", REPLAY),
    ("replay_time_scale", REPLAY),
    ("merge_blktrace_file", REPLAY),
    ("merge_blktrace_iters", REPLAY),
    ("merge_blktrace_scalars", REPLAY),
    ("profile", "is not supported: give each of its jobs a section"),
    ("create_only", "is not supported: the volume exists, so the job would do nothing"),
    ("trim_percentage", TRIMS),
    ("trim_backlog", TRIMS),
    ("trim_backlog_batch", TRIMS),
    ("trim_verify_zero", TRIMS),
    ("offset_align", "is not supported: give offset in bytes"),
    ("thinktime_iotime", "is not supported: use thinktime_blocks"),
    ("zone_reset_threshold", RESETS),
    ("zone_reset_frequency", RESETS),
    ("job_max_open_zones", "is not supported: max_open_zones limits all jobs together"),
    ("verify_state_load", "is not supported: verify_only verifies a whole job"),
    ("exec_prerun", "is not supported: a job starts no programs"),
    ("exec_postrun", "is not supported: a job starts no programs"),
    ("uid", "is not supported: run it as that user"),
    ("gid", "is not supported: run it as that group"),
    ("cgroup", "is not supported: run it in that group"),
    ("cgroup_weight", "is not supported: run it in a group with that weight"),
    ("cgroup_nodelete", "is not supported: run it in that group"),
    ("sg_write_mode", "is not supported: it concerns SCSI commands"),
    ("write_mode", "is not supported: it concerns device-specific commands"),
    ("read_mode", "is not supported: it concerns device-specific commands"),
    ("md_per_io_size", "is not supported: a volume has no per-sector metadata"),
    ("pi_act", "is not supported: a volume has no per-sector metadata"),
    ("sprandom", "is not supported: it is for one kind of garbage collection in flash memory"),
    ("nfs_url", "is not supported: it uses a file system of its own"),
];

/// The engine's depth here, or the reason why the engine is refused.
pub(super) fn engine(name: &str) -> Result<Engine, String> {
    if let Some((_, engine)) = ENGINES.iter().find(|(known, _)| *known == name) {
        return Ok(*engine);
    }
    let names = ENGINES.map(|(name, _)| name).join(", ");
    match OTHER_ENGINES.iter().find(|(known, _)| *known == name) {
        Some((_, why)) => {
            Err(format!("ioengine={name} is not supported: {why}; there are {names}"))
        }
        None => Err(format!("ioengine is {name:?}; the engines are {names}")),
    }
}

/// The reason why an option is refused, if it is.
pub(super) fn refusal(key: &str) -> Option<&'static str> {
    REFUSED.iter().find(|(name, _)| *name == key).map(|(_, why)| *why)
}

/// Name and reason of an ignored option.
pub(super) fn ignored(key: &str) -> Option<(&'static str, &'static str)> {
    IGNORED.iter().find(|(name, _)| *name == key).copied()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_name_is_known_as_one_thing() {
        let mut seen = BTreeSet::new();
        let options = IGNORED.iter().chain(REFUSED).map(|(name, _)| *name);
        assert!(options.clone().all(|name| seen.insert(name)), "twice");
        let used: Vec<&str> = super::super::options::names().collect();
        // The lab's jobs use these options; a volume ignores them.
        let both: Vec<&str> = options.filter(|name| used.contains(name)).collect();
        assert_eq!(both, ["filename", "overwrite", "cpus_allowed", "cpus_allowed_policy"]);
        let mut engines = BTreeSet::new();
        let names = ENGINES.iter().map(|(name, _)| *name);
        let others = OTHER_ENGINES.iter().map(|(name, _)| *name);
        assert!(names.chain(others).all(|name| engines.insert(name)));
    }
}
