//! fio's own examples by name: the accepted ones with their options, and the refused ones with the
//! decisive option. The files themselves belong to fio and are not included.

use super::known;
use super::options;
use super::{JobFile, Surroundings};

/// Name and options of each accepted example.
const TAKEN: &[(&str, &str)] = &[
    ("1mbs_clients", "directory rate ratemin rw size startdelay"),
    ("aio-read", "bs buffered directory iodepth ioengine rw size"),
    (
        "atomic-verify",
        "atomic bs direct filename iodepth ioengine numjobs rw verify verify_write_sequence",
    ),
    ("backwards-read", "bs filename rw size"),
    ("basic-verify", "bs direct filename iodepth ioengine rw verify"),
    ("butterfly", "bs direct filename flow rw"),
    (
        "cmdprio-percentage",
        "bs cmdprio_class cmdprio_percentage direct filename iodepth ioengine log_prio prioclass \
      rw write_lat_log",
    ),
    (
        "cross-stripe-verify",
        "bs direct filename group_reporting io_size loops numjobs offset offset_increment \
      rw verify verify_backlog verify_dump",
    ),
    (
        "dedupe-global",
        "blocksize buffer_compress_percentage dedupe_global dedupe_mode dedupe_percentage \
      dedupe_working_set_percentage iodepth ioengine rw size",
    ),
    (
        "disk-zone-profile",
        "bs direct filename iodepth ioengine log_offset rw write_bw_log zonemode zonesize zoneskip",
    ),
    (
        "enospc-pressure",
        "bs buffered continue_on_error create_on_open direct directory error_dump exitall \
      fallocate filename filesize ignore_error iodepth ioengine runtime rw size \
      time_based verify verify_async verify_backlog verify_dump verify_fatal",
    ),
    (
        "example_latency_steadystate",
        "bs direct filename iodepth ioengine log_avg_msec numjobs runtime rw size \
      steadystate steadystate_check_interval steadystate_duration steadystate_ramp_time \
      time_based write_lat_log",
    ),
    (
        "exitwhat",
        "blocksize exit_what exitall filename filesize group_reporting iodepth ioengine \
      new_group number_ios numjobs rate rw stonewall thinktime",
    ),
    (
        "flow",
        "bs direct filename flow flow_sleep iodepth ioengine norandommap numjobs runtime rw size \
      thread time_based",
    ),
    (
        "fio-rand-RW",
        "bs direct filename iodepth ioengine name numjobs runtime rw rwmixread rwmixwrite \
      size time_based",
    ),
    (
        "fio-rand-read",
        "bs direct filename iodepth ioengine name numjobs runtime rw size time_based",
    ),
    (
        "fio-rand-write",
        "bs direct filename iodepth ioengine name numjobs runtime rw size time_based",
    ),
    (
        "fio-seq-RW",
        "bs direct filename iodepth ioengine name numjobs runtime rw rwmixread rwmixwrite \
      size time_based",
    ),
    ("fio-seq-read", "bs direct filename iodepth ioengine name numjobs runtime rw size time_based"),
    (
        "fio-seq-write",
        "bs direct filename iodepth ioengine name numjobs runtime rw size time_based",
    ),
    ("fixed-rate-submission", "direct io_submit_mode iodepth ioengine rate_iops rw size"),
    ("fsx", "bs direct iodepth ioengine loops norandommap rw size"),
    ("iometer-file-access-server", "bssplit description direct iodepth ioengine rw rwmixread size"),
    (
        "jesd219",
        "blockalign bssplit direct filename group_reporting iodepth ioengine norandommap \
      numjobs random_distribution randrepeat rw rwmixread rwmixwrite",
    ),
    (
        "latency-profile",
        "bs direct filename iodepth ioengine latency_percentile latency_target latency_window \
      random_generator rw",
    ),
    (
        "libblkio-io_uring",
        "blocksize direct ioengine libblkio_driver libblkio_path numjobs runtime rw thread \
      time_based",
    ),
    (
        "libblkio-virtio-blk-vfio-pci",
        "blocksize ioengine libblkio_driver libblkio_path numjobs runtime rw thread time_based",
    ),
    ("libiscsi", "filename ioengine"),
    ("nbd", "group_reporting iodepth ioengine offset runtime rw time_based uri"),
    ("null", "bs gtod_reduce ioengine norandommap rw size"),
    ("numa", "bs buffered filename iodepth ioengine numa_cpu_nodes numa_mem_policy rw size"),
    (
        "poisson-rate-submission",
        "direct io_submit_mode iodepth ioengine rate_iops rate_process rw size",
    ),
    ("rand-zones", "bs direct norandommap random_distribution rw size"),
    ("rbd", "bs clientname iodepth ioengine pool rbdname rw"),
    (
        "ssd-steadystate",
        "bs description direct filename group_reporting iodepth ioengine numjobs rw \
      stonewall write_bw_log",
    ),
    ("ssd-test", "bs direct directory filename iodepth ioengine runtime rw size stonewall"),
    (
        "steadystate",
        "bs filename group_reporting new_group numjobs runtime rw size ss ss_dur ss_ramp \
      stonewall threads time_based",
    ),
    (
        "surface-scan",
        "bs create_serialize direct do_verify filename fill_device ioengine rw stonewall \
      thread verify verify_interval verify_pattern",
    ),
    ("tiobench-example", "bsrange direct numjobs rw size stonewall timeout"),
    (
        "uring-cmd-bsg",
        "bs cmd_type filename fsync iodepth ioengine readfua rw size stonewall writefua",
    ),
    (
        "uring-cmd-fdp",
        "bs cmd_type fdp fdp_pli filename iodepth ioengine offset runtime rw rwmixwrite \
      size time_based",
    ),
    (
        "uring-cmd-ng",
        "bs cmd_type filename iodepth ioengine nonvectored registerfiles rw size \
      sqthread_poll sqthread_poll_cpu stonewall thread",
    ),
    (
        "uring-cmd-trim-multi-range",
        "bs bssplit cmd_type filename iodepth ioengine num_range rw size stonewall thread",
    ),
    (
        "waitfor",
        "bs filename filesize group_reporting new_group numjobs runtime rw threads wait_for",
    ),
    (
        "xnvme-compare",
        "allow_file_create bs direct iodepth norandommap ramp_time runtime rw size thread \
      time_based",
    ),
    ("xnvme-fdp", "bs fdp fdp_pli iodepth rw size thread"),
    ("zipf", "bs ioengine norandommap random_distribution rw size"),
];

/// Name and refused option of each other example.
const REFUSED: &[(&str, &str)] = &[
    ("cmdprio-bssplit", "cmdprio_bssplit=1M/10/2/0/1:2M/90/2/0/0"),
    ("cpp_null", "time_based"),
    ("cpuio", "ioengine=cpuio"),
    ("dev-dax", "ioengine=dev-dax"),
    ("dfs", "ioengine=dfs"),
    ("dircreate-ioengine", "ioengine=dircreate"),
    ("dirdelete-ioengine", "ioengine=dirdelete"),
    ("dirstat-ioengine", "ioengine=dirstat"),
    ("e4defrag", "ioengine=e4defrag"),
    ("e4defrag2", "ioengine=e4defrag"),
    ("exec", "ioengine=exec"),
    ("falloc", "ioengine=falloc"),
    ("filecreate-ioengine", "ioengine=filecreate"),
    ("filedelete-ioengine", "ioengine=filedelete"),
    ("filestat-ioengine", "ioengine=filestat"),
    ("ftruncate", "ioengine=ftruncate"),
    ("gfapi", "ioengine=gfapi"),
    ("gpudirect-rdmaio-client", "ioengine=rdma"),
    ("gpudirect-rdmaio-server", "ioengine=rdma"),
    ("http-s3", "ioengine=http"),
    ("http-s3-crypto", "ioengine=http"),
    ("http-s3-storage-class", "ioengine=http"),
    ("http-swift", "ioengine=http"),
    ("http-webdav", "ioengine=http"),
    ("ime", "ioengine=ime_psync"),
    ("libcufile-cufile", "ioengine=libcufile"),
    ("libcufile-posix", "ioengine=libcufile"),
    ("libhdfs", "ioengine=libhdfs"),
    ("libhipfile-hipfile", "ioengine=libhipfile"),
    ("libhipfile-posix", "ioengine=libhipfile"),
    ("libpmem", "ioengine=libpmem"),
    ("libzbc-rand-write", "zonemode=zbd"),
    ("libzbc-seq-read", "zonemode=zbd"),
    ("mtd", "ioengine=mtd"),
    ("netio", "ioengine=net"),
    ("netio_multicast", "ioengine=net"),
    ("netio_vsock", "ioengine=net"),
    ("netio_vsock_receiver", "ioengine=net"),
    ("netio_vsock_sender", "ioengine=net"),
    ("nfs", "nfs_url=nfs://127.0.0.1/nfs"),
    ("page_fault", "ioengine=page_fault"),
    ("rados", "ioengine=rados"),
    ("rdmaio-client", "ioengine=rdma"),
    ("rdmaio-server", "ioengine=rdma"),
    ("sequence-distribution", "random_distribution=sequence:2,0,1"),
    ("sg_verify", "sg_write_mode=verify_bytchk_00"),
    ("sg_verify-fail", "sg_write_mode=verify_bytchk_01"),
    ("sg_write_same_ndob", "sg_write_mode=write_same_ndob"),
    ("sprandom", "sprandom=1"),
    ("uring-cmd-pi-ext", "pi_act=0"),
    ("uring-cmd-pi-sb", "md_per_io_size=64"),
    ("uring-cmd-write-mode", "write_mode=x"),
    ("uring-cmd-zoned", "zonemode=zbd"),
    ("uring-cmd-zoned-append", "zonemode=zbd"),
    ("xnvme-pi", "md_per_io_size=64"),
    ("xnvme-zoned", "zonemode=zbd"),
    ("zbd-rand-write", "zonemode=zbd"),
    ("zbd-rand-write-trim-gc", "zonemode=zbd"),
    ("zbd-rand-write-zone-reset-gc", "zonemode=zbd"),
    ("zbd-seq-read", "zonemode=zbd"),
];

#[test]
fn each_option_of_an_example_that_is_taken_is_known() {
    let of_file = ["name", "ioengine"];
    for (name, keys) in TAKEN {
        for key in keys.split_whitespace() {
            let is_known = of_file.contains(&key)
                || options::names().any(|name| name == key)
                || known::ignored(key).is_some();
            assert!(is_known && known::refusal(key).is_none(), "{name}: {key}");
        }
    }
}

#[test]
fn each_example_that_is_refused_is_so_with_a_reason() {
    for (name, option) in REFUSED {
        let text = format!("[a]\n{option}\n");
        let here = Surroundings::of_device(1 << 40);
        let error = JobFile::parse(Some(&text), &[], &here).unwrap_err().to_string();
        let reasons = ["is not supported", "needs a runtime", "it must be", "needs a zonesize"];
        assert!(reasons.iter().any(|reason| error.contains(reason)), "{name}: {error}");
    }
}
