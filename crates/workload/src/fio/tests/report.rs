//! The figures of a report.

use super::*;

/// fio 3.33's list of such jobs.
#[test]
fn clones_are_listed_one_by_one_or_a_group_as_one() {
    let named = |name: &str, numjobs, group_reporting| {
        job(Rw::Read, 2).with(|job| {
            job.name = name.into();
            job.clones.numjobs = numjobs;
            job.grouping.group_reporting = group_reporting;
        })
    };
    let listed = |is_one: bool| {
        let mut jobs = ["a", "b", "c", "d"].map(|name| named(name, 1, is_one)).to_vec();
        (jobs[0].clones.numjobs, jobs[2].grouping.new_group, jobs[3].grouping.stonewall) =
            (2, true, true);
        let mut fio = Fio::new(jobs).unwrap();
        World::new(10, 2_000).run(&mut fio);
        let of = |one: &JobResult| (one.name.clone(), one.group, one.numjobs, one.read.ios);
        fio.listed().iter().map(of).collect::<Vec<_>>()
    };
    let owned = |(name, group, numjobs, ios): (&str, _, _, _)| (name.into(), group, numjobs, ios);
    let clones = [("a", 0, 1, 2), ("a", 0, 1, 2), ("b", 0, 1, 2), ("c", 1, 1, 2), ("d", 2, 1, 2)];
    assert_eq!(listed(false), clones.map(owned));
    assert_eq!(listed(true), [("a", 0, 3, 6), ("c", 1, 1, 2), ("d", 2, 1, 2)].map(owned));
}

#[test]
fn logs_are_of_each_clone_and_have_nothing_of_the_ramp() {
    let mut logged = job(Rw::Write, 100).with(|job| {
        job.submission.direct = true;
        job.clones.numjobs = 2;
    });
    logged.set("write_lat_log", "x").unwrap();
    logged.set("ramp_time", "100us").unwrap();
    let mut fio = Fio::new(vec![logged]).unwrap();
    World::new(10, 2_000).run(&mut fio);
    let names: Vec<&str> = fio.logs().iter().map(|log| log.name.as_str()).collect();
    let own = |clone: u32| ["slat", "clat", "lat"].map(|kind| format!("x_{kind}.{clone}.log"));
    assert_eq!(names, [own(1), own(2)].concat());
    let [.., last] = fio.logs() else { panic!("six") };
    let counted: u64 = fio.results()[0].write.ios;
    assert_eq!(2 * last.text.lines().count() as u64, counted);
    assert!(counted < 200 && last.text.starts_with("2, 2000000, 1, 4096, 0\n"), "{}", last.text);
}

/// As with fio's `gtod_reduce`: figures without measurement are not listed.
#[test]
fn report_omits_latencies_with_gtod_reduce() {
    let mut reduced = job(Rw::Read, 100);
    reduced.set("gtod_reduce", "1").unwrap();
    let mut fio = Fio::new(vec![reduced]).unwrap();
    World::new(10, 2_000).run(&mut fio);
    let text = fio.print();
    assert!(text.contains("  read: IOPS=") && !text.contains("lat ("), "{text}");
}

#[test]
fn report_has_the_tools_shape() {
    let mut world = World::new(10, 2_000);
    let mixed = job(Rw::ReadWrite, 200).with(|job| {
        job.submission.direct = true;
        job.submission.fsync_every = 2;
        job.clones.numjobs = 2;
    });
    let mut fio = Fio::new(vec![mixed.with(|job| job.name = "mixed".into())]).unwrap();
    world.run(&mut fio);
    let text = fio.print();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "mixed: (groupid=0, jobs=2): err= 0");
    assert!(lines[1].starts_with("  read: IOPS=") && lines[1].ends_with("msec)"), "{text}");
    assert_eq!(lines[2], "    slat (nsec): min=10000, max=10000, avg=10000.00, stdev=0.00");
    assert_eq!(lines[3], "    clat (usec): min=1990, max=1990, avg=1990.00, stdev=0.00");
    assert_eq!(
        lines[6],
        "     |  1.00th=[ 1991],  5.00th=[ 1991], 10.00th=[ 1991], 20.00th=[ 1991],"
    );
    assert_eq!(lines[10], "     | 99.99th=[ 1991]");
    assert!(lines.iter().any(|line| line.starts_with("  write: IOPS=")), "{text}");
    assert!(lines.contains(&"  fsync:"), "{text}");
}

/// The proposal of 2023 prints a report of fio. For one process whose device finishes before
/// `submit` returns, nearly the whole report follows from the time of one write.
#[test]
fn report_of_2023_follows_from_one_number() {
    // 60001 ms for 78060 writes, of which a submission took 765.71 us.
    let mut world = World { call: Nanos(765_710), ..World::new(0, 0) };
    world.reap = Nanos(2_957);
    let crypt = job(Rw::Write, 1).with(|job| {
        job.name = "crypt".into();
        job.shape.block_bytes = 1 << 20;
        job.region.size_bytes = 1 << 30;
        job.submission.direct = true;
        job.submission.iodepth = 256; // fio's clock runs a little behind.
        job.end.runtime = Some(Nanos(60_000_700_000));
        job.end.time_based = true;
    });
    let mut fio = Fio::new(vec![crypt]).unwrap();
    world.run(&mut fio);
    let text = fio.print();
    for printed in [
        "crypt: (groupid=0, jobs=1): err= 0\n  write: IOPS=1300, BW=1301MiB/s (1364MB/s)\
         (76.2GiB/60001msec); 0 zone resets\n    slat (usec): ",
        "    clat percentiles (msec):\n     \
         |  1.00th=[  197],  5.00th=[  197], 10.00th=[  197], 20.00th=[  197],\n     \
         | 30.00th=[  197], 40.00th=[  197], 50.00th=[  197], 60.00th=[  197],\n     \
         | 70.00th=[  197], 80.00th=[  197], 90.00th=[  197], 95.00th=[  197],\n     \
         | 99.00th=[  197], 99.50th=[  197], 99.90th=[  197], 99.95th=[  197],\n     \
         | 99.99th=[  197]\n",
        // The shortest latency is 4 us there, and 2 us here.
        "  lat (msec)   : 2=0.01%, 4=0.01%, 10=0.01%, 20=0.02%, 50=0.05%\n  \
         lat (msec)   : 100=0.08%, 250=99.83%\n",
        "  IO depths    : 1=0.1%, 2=0.1%, 4=0.1%, 8=0.1%, 16=0.1%, 32=0.1%, >=64=99.9%\n     \
         submit    : 0=0.0%, 4=100.0%, 8=0.0%, 16=0.0%, 32=0.0%, 64=0.0%, >=64=0.0%\n     \
         complete  : 0=0.0%, 4=100.0%, 8=0.0%, 16=0.0%, 32=0.0%, 64=0.0%, >=64=0.1%\n     \
         issued rwts: total=0,78060,0,0 short=0,0,0,0 dropped=0,0,0,0\n     \
         latency   : target=0, window=0, percentile=100.00%, depth=256\n",
        "\nRun status group 0 (all jobs):\n  WRITE: bw=1301MiB/s (1364MB/s), \
         1301MiB/s-1301MiB/s (1364MB/s-1364MB/s), io=76.2GiB (81.9GB), run=60001-60001msec\n",
    ] {
        assert!(text.contains(printed), "{printed}\nis not in\n{text}");
    }
    // Published: 196454.90 and 6450.35; 1296.94, 46.02 and 119 samples from 800 to 1308.
    let result = &fio.results()[0].write;
    assert!((result.lat.mean_ns() / 196_454_900.0 - 1.0).abs() < 0.001, "{text}");
    assert!((result.lat.stdev_ns() / 6_450_350.0 - 1.0).abs() < 0.02, "{text}");
    let rates = result.samples.iops().unwrap();
    assert!((rates.mean / 1296.94 - 1.0).abs() < 0.001 && rates.count == 119, "{text}");
    assert!((rates.stdev / 46.02 - 1.0).abs() < 0.05, "{text}");
    assert!((rates.min / 800.0 - 1.0).abs() < 0.03 && (rates.max / 1308.0 - 1.0).abs() < 0.03);
}

/// As fio's `sum_thread_stats`: operations and bytes are added up, and the time is the longest.
#[test]
fn rates_of_clones_are_over_the_longest_time_and_their_sums_over_each_own() {
    let of_clone = |ms, ios| {
        let runtime = Nanos::from_ms(ms);
        let read = Transfers { ios, bytes: ios * 4096, ..Transfers::default() };
        let clone = CloneResult { runtime, read: (&read).into(), write: TransferTotals::default() };
        JobResult { runtime, read, clones: vec![clone], ..JobResult::default() }
    };
    let mut all = of_clone(1_000, 100);
    all.add(&of_clone(4_000, 40));
    assert_eq!((all.iops(&all.read), all.bandwidth(&all.read)), (35.0, 35.0 * 4096.0));
    assert_eq!(all.sums(|clone| clone.read), (110.0, 110.0 * 4096.0));
    assert_eq!(
        (all.shortest_runtime(), all.runtime),
        (Nanos::from_ms(1_000), Nanos::from_ms(4_000))
    );
}
