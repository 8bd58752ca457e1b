//! Names of fio that a volume has no use for: options that change nothing, options and engines that
//! it cannot have, each with the reason.

/// How an engine has its requests in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Engine {
    /// One at a time.
    Waiting,
    /// `iodepth` of them.
    Asynchronous,
    /// `iodepth` of them, and none goes anywhere.
    Null,
}

use Engine::{Asynchronous, Null, Waiting};

/// Engines for which the volume stands in.
const ENGINES: [(&str, Engine); 22] = [
    ("libaio", Asynchronous),
    ("io_uring", Asynchronous),
    ("io_uring_cmd", Asynchronous),
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

/// Engines that do something else than block I/O, or to something else than a block device.
const OTHER_ENGINES: [(&str, &str); 38] = [
    ("net", "it sends over a network"),
    ("netsplice", "it sends over a network"),
    ("rdma", "it sends over a network"),
    ("librpma_apm_client", "it sends over a network"),
    ("librpma_apm_server", "it sends over a network"),
    ("librpma_gpspm_client", "it sends over a network"),
    ("librpma_gpspm_server", "it sends over a network"),
    ("http", "it talks to a store of objects"),
    ("rados", "it talks to a store of objects"),
    ("dfs", "it talks to a file system of its own"),
    ("gfapi", "it talks to a file system of its own"),
    ("gfapi_async", "it talks to a file system of its own"),
    ("libhdfs", "it talks to a file system of its own"),
    ("nfs", "it talks to a file system of its own"),
    ("ime_aio", "it talks to a file system of its own"),
    ("ime_psync", "it talks to a file system of its own"),
    ("ime_psyncv", "it talks to a file system of its own"),
    ("cpuio", "it only uses CPU time"),
    ("exec", "it starts a program"),
    ("page_fault", "it touches memory"),
    ("e4defrag", "it moves parts of files"),
    ("falloc", "it allocates parts of files"),
    ("ftruncate", "it shortens and lengthens files"),
    ("filecreate", "it makes files"),
    ("filestat", "it looks at files"),
    ("filedelete", "it removes files"),
    ("fileoperation", "it makes and removes files"),
    ("dircreate", "it makes folders"),
    ("dirstat", "it looks at folders"),
    ("dirdelete", "it removes folders"),
    ("dev-dax", "it maps persistent memory"),
    ("libpmem", "it maps persistent memory"),
    ("pmemblk", "it maps persistent memory"),
    ("mtd", "it is for flash memory without a block device"),
    ("libzbc", "a volume has no zones"),
    ("libcufile", "it moves data to a graphics card"),
    ("libhipfile", "it moves data to a graphics card"),
    ("external", "it is code that fio loads"),
];

const FILES: &str = "jobs run on the volume";
const LENGTH: &str = "the volume has its length";
const NO_CACHE: &str = "of the page cache there is only direct=0 and 1";
const LISTED: &str = "all of it is measured, and listed";
const CLOCK: &str = "the clock is cheap";
const WORLD: &str = "a clone runs where the system puts it; numa_cpu_nodes is for the lab";
const DEVICE: &str = "it is of a device's own commands";

/// Options that change nothing on a volume, and why.
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
    ("create_on_open", "the volume is there"),
    ("overwrite", "the volume is there"),
    ("unlink", "the volume stays"),
    ("unlink_each_loop", "the volume stays"),
    ("fsync_on_close", "what ends a job is end_fsync"),
    ("end_syncfs", "what ends a job is end_fsync"),
    ("invalidate", NO_CACHE),
    ("fadvise_hint", NO_CACHE),
    ("pre_read", NO_CACHE),
    ("sync_file_range", NO_CACHE),
    ("uncached", NO_CACHE),
    ("nowait", NO_CACHE),
    ("sync", "a write has ended when the volume has it; fsync=1 flushes behind each"),
    ("write_barrier", "fsync flushes"),
    ("atomic", "the volume has no atomic writes; these are ordinary ones"),
    ("write_hint", "a volume does not tell kinds of data apart"),
    ("fdp", "a volume does not tell kinds of data apart"),
    ("fdp_pli", "a volume does not tell kinds of data apart"),
    ("dataplacement", "a volume does not tell kinds of data apart"),
    ("plids", "a volume does not tell kinds of data apart"),
    ("thread", "each clone is a thread"),
    ("threads", "each clone is a thread"),
    ("nice", WORLD),
    ("cpus_allowed", WORLD),
    ("cpumask", WORLD),
    ("cpus_allowed_policy", WORLD),
    ("numa_mem_policy", "memory is the system's matter"),
    ("mem", "memory is the system's matter"),
    ("iomem", "memory is the system's matter"),
    ("iomem_align", "buffers are aligned to pages"),
    ("mem_align", "buffers are aligned to pages"),
    ("hugepage-size", "memory is the system's matter"),
    ("lockmem", "memory is the system's matter"),
    ("description", "it is for readers"),
    ("comm", "it is for readers"),
    ("log_prio", "a line of a log says whether its job is real-time"),
    ("log_entries", "a log grows as it must"),
    ("log_alternate_epoch", "times are from the start of the job"),
    ("log_alternate_epoch_clock_id", "times are from the start of the job"),
    ("log_unix_epoch", "times are from the start of the job"),
    ("log_compression", "logs are text"),
    ("log_compression_cpus", "logs are text"),
    ("log_store_compressed", "logs are text"),
    ("randrepeat", "each run draws the same; randseed changes it"),
    ("allrandrepeat", "each run draws the same; randseed changes it"),
    ("random_generator", "any order of blocks is computed, and needs no memory"),
    ("softrandommap", "any order of blocks is computed, and needs no memory"),
    ("gtod_cpu", CLOCK),
    ("clocksource", CLOCK),
    ("job_start_clock_id", CLOCK),
    ("iodepth_low", "one request is started as one ends"),
    ("iodepth_batch", "one request is started as one ends"),
    ("iodepth_batch_submit", "one request is started as one ends"),
    ("iodepth_batch_complete", "one request is started as one ends"),
    ("iodepth_batch_complete_min", "one request is started as one ends"),
    ("iodepth_batch_complete_max", "one request is started as one ends"),
    ("io_submit_mode", "a clone submits its requests itself"),
    ("serialize_overlap", "requests on one place are in order of their submission"),
    ("thinktime_spin", "a clone that thinks sleeps"),
    ("disk_util", "that is of the kernel's disks"),
    ("unit_base", LISTED),
    ("unified_rw_reporting", LISTED),
    ("stats", LISTED),
    ("significant_figures", LISTED),
    ("block_error_percentiles", LISTED),
    ("iopsavgtime", "a sample is half a second"),
    ("bwavgtime", "a sample is half a second"),
    ("dedupe_global", "each clone writes again what it has written itself"),
    ("userspace_reap", "it is of the engine that the volume stands in for"),
    ("hipri", "it is of the engine that the volume stands in for"),
    ("fixedbufs", "it is of the engine that the volume stands in for"),
    ("registerfiles", "it is of the engine that the volume stands in for"),
    ("sqthread_poll", "it is of the engine that the volume stands in for"),
    ("sqthread_poll_cpu", "it is of the engine that the volume stands in for"),
    ("nonvectored", "it is of the engine that the volume stands in for"),
    ("force_async", "it is of the engine that the volume stands in for"),
    ("libaio_vectored", "it is of the engine that the volume stands in for"),
    ("libblkio_driver", FILES),
    ("libblkio_path", FILES),
    ("uri", FILES),
    ("pool", FILES),
    ("rbdname", FILES),
    ("clientname", FILES),
    ("busy_poll", "it is of the engine that the volume stands in for"),
    ("cmd_type", DEVICE),
    ("num_range", DEVICE),
    ("readfua", DEVICE),
    ("writefua", DEVICE),
    ("ignore_error", "an error ends its job"),
    ("error_dump", "an error ends its job, and is told"),
    ("read_beyond_wp", "a volume has no zones of its own"),
    ("ignore_zone_limits", "a volume has no zones of its own"),
    ("ioscheduler", "--elevator says how requests are ordered"),
    ("verify_dump", "a mismatch is told with its offset, and nothing is written"),
    ("verify_async", "a clone checks what it reads itself"),
    ("verify_async_cpus", "a clone checks what it reads itself"),
    ("verify_backlog_batch", "all that was written since is read again"),
    ("verify_state_save", "verify_only knows what a job would have written"),
    ("verify_write_sequence", "a number is checked where it is known"),
    ("verify_header_seed", "data is known by its checksum"),
    ("verify_policy", "all that was written is checked"),
    ("experimental_verify", "all that was written is checked"),
];

const REPLAY: &str = "is not taken: `blockyard replay` replays requests";
const TRIMS: &str = "is not taken: rw=trimwrite trims what is written next, and rw=trim all of it";
const RESETS: &str = "is not taken: a zone is reset when it is full and written again";

/// Options without which a job would be another, and that are not here.
const REFUSED: &[(&str, &str)] = &[
    ("include", "is not taken here: put its lines into this file"),
    ("bs_unaligned", "is not for volumes: requests are whole sectors of 512 bytes"),
    ("blocksize_unaligned", "is not for volumes: requests are whole sectors of 512 bytes"),
    ("bs_is_seq_rand", "is not taken: give sequential and random requests a job each"),
    ("write_iolog", "is not taken: `blockyard trace` records requests"),
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
    ("profile", "is not taken: give each of its jobs a section"),
    ("create_only", "is not taken: the volume is there, and the job would do nothing"),
    ("trim_percentage", TRIMS),
    ("trim_backlog", TRIMS),
    ("trim_backlog_batch", TRIMS),
    ("trim_verify_zero", TRIMS),
    ("offset_align", "is not taken: percent of a volume are whole blocks; say offset in bytes"),
    ("thinktime_iotime", "is not taken: thinktime_blocks says how often a job thinks"),
    ("zone_reset_threshold", RESETS),
    ("zone_reset_frequency", RESETS),
    ("job_max_open_zones", "is not taken: max_open_zones is of all jobs together"),
    ("verify_state_load", "is not taken: verify_only looks at what a whole job would have written"),
    ("exec_prerun", "is not taken: a job starts no programs"),
    ("exec_postrun", "is not taken: a job starts no programs"),
    ("uid", "is not taken: run it as that user"),
    ("gid", "is not taken: run it as that group"),
    ("cgroup", "is not taken: run it in that group"),
    ("cgroup_weight", "is not taken: run it in a group with that weight"),
    ("cgroup_nodelete", "is not taken: run it in that group"),
    ("sg_write_mode", "is not taken: it is of SCSI commands, and a volume only reads and writes"),
    ("write_mode", "is not taken: it is of a device's own commands, and a volume only writes"),
    ("read_mode", "is not taken: it is of a device's own commands, and a volume only reads"),
    ("md_per_io_size", "is not taken: a volume has no metadata beside its sectors"),
    ("pi_act", "is not taken: a volume has no metadata beside its sectors"),
    ("sprandom", "is not taken: it is made for one way of cleaning up in flash memory"),
    ("nfs_url", "is not taken: it is of a file system of its own"),
];

/// What an engine is here, or why it is not.
pub(super) fn engine(name: &str) -> Result<Engine, String> {
    if let Some((_, engine)) = ENGINES.iter().find(|(known, _)| *known == name) {
        return Ok(*engine);
    }
    let names = ENGINES.map(|(name, _)| name).join(", ");
    match OTHER_ENGINES.iter().find(|(known, _)| *known == name) {
        Some((_, why)) => Err(format!("ioengine={name} is not taken: {why}; there are {names}")),
        None => Err(format!("ioengine is {name:?}; known are {names}")),
    }
}

/// Why an option is not taken, if it is one of those.
pub(super) fn refusal(key: &str) -> Option<&'static str> {
    REFUSED.iter().find(|(name, _)| *name == key).map(|(_, why)| *why)
}

/// Why an option changes nothing, if it is one of those.
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
        // These say where a job runs, which in the lab a job does.
        let both: Vec<&str> = options.filter(|name| used.contains(name)).collect();
        assert_eq!(both, ["filename", "overwrite"]);
        let mut engines = BTreeSet::new();
        let names = ENGINES.iter().map(|(name, _)| *name);
        let others = OTHER_ENGINES.iter().map(|(name, _)| *name);
        assert!(names.chain(others).all(|name| engines.insert(name)));
    }
}
