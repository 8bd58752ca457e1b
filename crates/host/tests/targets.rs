//! Each target on real files, from the text of its table line.

mod client;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use blockyard_crypt::secret::SecretBytes;
use blockyard_engine::bio::{BlkStatus, Done, Op};
use blockyard_engine::elevator::ElevatorSpec;
use blockyard_engine::priority::Priority;
use blockyard_host::copy::{dump, load};
use blockyard_host::local::{Client, Request};
use blockyard_host::pages::BounceChoice;
use blockyard_host::server::ServedExport;
use blockyard_host::volume::{PipelineChoice, Scheduling, Volume, VolumeOptions};
use blockyard_host::write_log::{FLUSH, LogReader};

const SECTORS: usize = 2048;
const SIZE_BYTES: usize = SECTORS * 512;

/// Files of `SIZE_BYTES` zeroes: in memory, and on the disk of the test binaries.
struct Files {
    dir: tempfile::TempDir,
}

impl Files {
    fn in_memory() -> Self {
        Self { dir: tempfile::tempdir_in("/dev/shm").unwrap() }
    }

    fn on_disk() -> Self {
        let here = std::env::current_exe().unwrap();
        Self { dir: tempfile::tempdir_in(here.parent().unwrap()).unwrap() }
    }

    fn file(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        File::create(&path).unwrap().set_len(SIZE_BYTES as u64).unwrap();
        path
    }
}

fn volume(table: &str) -> Arc<Volume> {
    let text = SecretBytes::copy_of(table.as_bytes());
    Arc::new(Volume::from_table(&text, &VolumeOptions::default()).unwrap())
}

fn fails(table: &str, options: &VolumeOptions) -> String {
    let text = SecretBytes::copy_of(table.as_bytes());
    Volume::from_table(&text, options).err().expect("it is wrong").to_string()
}

/// Bytes that differ from sector to sector.
fn plaintext(seed: u64) -> Vec<u8> {
    (0..SIZE_BYTES as u64 / 8)
        .flat_map(|word| (word + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())
        .collect()
}

fn fill(volume: &Arc<Volume>, bytes: &[u8]) {
    load(volume, &mut &*bytes, &mut |_| {}).unwrap();
}

fn contents(volume: &Arc<Volume>) -> Vec<u8> {
    let mut bytes = Vec::new();
    dump(volume, &mut bytes, &mut |_| {}).unwrap();
    bytes
}

fn request(op: Op, user: u64) -> Request {
    let len_bytes = if op == Op::Flush { 0 } else { 4096 };
    Request { user, op, offset_bytes: user * len_bytes, len_bytes, sync: false }
}

fn run(client: &mut Client, op: Op) -> BlkStatus {
    client.submit(request(op, 0));
    let mut done = Vec::new();
    client.wait(1, &mut done);
    done[0].status
}

fn client(table: &str) -> Client {
    Client::new(&volume(table), Priority::default()).unwrap()
}

#[test]
fn stripes_lie_in_turn_on_their_files() {
    for files in [Files::in_memory(), Files::on_disk()] {
        let a = files.file("a");
        let b = files.file("b");
        let table = format!("0 1024 striped 2 16 {} 0 {} 32", a.display(), b.display());
        let volume = volume(&table);
        let bytes = plaintext(0)[..1024 * 512].to_vec();
        fill(&volume, &bytes);
        assert!(contents(&volume) == bytes);
        let a = fs::read(a).unwrap();
        let b = fs::read(b).unwrap();
        for (number, chunk) in bytes.chunks_exact(16 * 512).enumerate() {
            let (file, start) = if number % 2 == 0 { (&a, 0) } else { (&b, 32 * 512) };
            let at = start + number / 2 * 16 * 512;
            assert!(file[at..at + chunk.len()] == *chunk, "chunk {number}");
        }
    }
}

#[test]
fn memory_loop_and_null_keep_their_parts_of_one_table() {
    let files = Files::on_disk();
    let file = files.file("a");
    let volume = volume(&format!(
        "0 512 ram\n512 512 loop {} 12\n1024 512 null 1 memory_backed:1\n1536 512 null",
        file.display()
    ));
    assert!(contents(&volume).iter().all(|byte| *byte == 0));
    let bytes = plaintext(0);
    fill(&volume, &bytes);
    let kept = 1536 * 512;
    let read = contents(&volume);
    assert!(read[..kept] == bytes[..kept]);
    assert!(read[kept..].iter().all(|byte| *byte == 0), "null forgets");
    let file = fs::read(file).unwrap();
    assert!(file[12 * 512..524 * 512] == bytes[512 * 512..1024 * 512]);
}

#[test]
fn delayed_write_ends_after_its_time_and_is_overtaken_by_a_read() {
    let files = Files::in_memory();
    let path = files.file("a");
    let path = path.display();
    let mut client = client(&format!("0 {SECTORS} delay {path} 0 0 {path} 0 50"));
    let start = Instant::now();
    client.submit(request(Op::Write, 1));
    client.submit(request(Op::Read, 2));
    let mut done = Vec::new();
    client.wait(1, &mut done);
    let ok = |user| Done { user, status: BlkStatus::Ok };
    assert_eq!(done, [ok(2)]);
    client.wait(1, &mut done);
    assert_eq!(done, [ok(2), ok(1)]);
    assert!(start.elapsed() >= Duration::from_millis(50));
}

#[test]
fn delay_and_timer_serve_a_connection_that_waits_for_nothing_else() {
    let files = Files::in_memory();
    let path = files.file("a");
    let volume = volume(&format!(
        "0 1024 delay {} 0 5\n1024 1024 null 3 irqmode:timer completion_nsec:3000000 \
         memory_backed:1",
        path.display()
    ));
    let socket = files.dir.path().join("socket");
    let export = ServedExport::new("a", Arc::clone(&volume));
    let serving = client::Serving::start(&socket, vec![export]);
    let mut client = serving.connect("a");
    for (cookie, offset) in [(1, 4096), (2, 768 << 10)] {
        client.ask(client::WRITE, 0, cookie, (offset, 8192), 7);
        assert_eq!(client.reply(), cookie);
        client.ask(client::READ, 0, cookie, (offset, 8192), 0);
        assert_eq!(client.reply(), cookie);
        assert_eq!(client.data(8192), [7; 8192]);
    }
    client.ask(client::FLUSH, 0, 3, (0, 0), 0);
    assert_eq!(client.reply(), 3);
    drop(client);
    serving.stop();
}

#[test]
fn flakey_device_that_is_always_down_does_what_its_features_say() {
    let files = Files::in_memory();
    let path = files.file("a");
    let line = |features: &str| format!("0 {SECTORS} flakey {} 0 0 1 {features}", path.display());
    let ok = BlkStatus::Ok;
    let failed = BlkStatus::IoError;
    for (features, read, write, flush) in [
        ("", failed, failed, failed),
        ("1 error_reads", failed, ok, ok),
        ("1 error_writes", ok, failed, failed),
    ] {
        let mut client = client(&line(features));
        assert_eq!(run(&mut client, Op::Read), read, "{features}");
        assert_eq!(run(&mut client, Op::Write), write, "{features}");
        assert_eq!(run(&mut client, Op::Flush), flush, "{features}");
    }
    let before = fs::read(&path).unwrap();
    fill(&volume(&line("1 drop_writes")), &plaintext(0));
    assert!(fs::read(&path).unwrap() == before, "dropped data was written");
    let read = contents(&volume(&line("5 corrupt_bio_byte 3 r 201 0")));
    let changed: Vec<_> = (0..SIZE_BYTES).filter(|at| read[*at] != before[*at]).collect();
    assert!(changed.first() == Some(&2) && changed.iter().all(|at| read[*at] == 201));
    // One change in each piece of a dump, and no other.
    assert!(changed.len() <= SIZE_BYTES / 4096 && changed.iter().all(|at| at % 4096 == 2));
    let up = format!("0 {SECTORS} flakey {} 0 1000000 1", path.display());
    assert!(contents(&volume(&up)) == before);
}

/// The device after a power cut with the first `count` entries stable.
fn replayed(reader: &LogReader, count: usize, at: &Path) -> Vec<u8> {
    let device = File::create(at).unwrap();
    device.set_len(SIZE_BYTES as u64).unwrap();
    reader.replay(count, &device).unwrap();
    fs::read(at).unwrap()
}

#[test]
fn write_with_fua_is_in_the_log_when_it_is_answered() {
    let files = Files::on_disk();
    let data = files.file("data");
    let log = files.file("log");
    let table = format!("0 {SECTORS} log-writes {} {}", data.display(), log.display());
    let socket = files.dir.path().join("socket");
    let export = ServedExport::new("a", volume(&table));
    let serving = client::Serving::start(&socket, vec![export]);
    let mut client = serving.connect("a");
    client.ask(client::WRITE, 0, 1, (0, 4096), 1);
    assert_eq!(client.reply(), 1);
    client.ask(client::WRITE, client::FUA, 2, (8192, 4096), 2);
    assert_eq!(client.reply(), 2);
    let replay = || replayed(&LogReader::open(&log).unwrap(), 9, &files.dir.path().join("r"));
    let device = replay();
    assert!(device[..8192] == [0; 8192], "the other one was never flushed");
    assert!(device[8192..12288] == [2; 4096]);
    client.ask(client::FLUSH, 0, 3, (0, 0), 0);
    assert_eq!(client.reply(), 3);
    assert!(replay()[..4096] == [1; 4096]);
    drop(client);
    serving.stop();
}

#[test]
fn log_replayed_up_to_a_flush_is_the_device_as_it_was_flushed() {
    for files in [Files::in_memory(), Files::on_disk()] {
        let data = files.file("data");
        let log = files.file("log");
        let table = format!("0 {SECTORS} log-writes {} {}", data.display(), log.display());
        let mut client = client(&table);
        let mut place = 1_u64;
        let mut flushed = Vec::new();
        for round in 0..6 {
            for user in 0..20 {
                place = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let offset_bytes = (place >> 33) % (SECTORS as u64 - 24) * 512;
                let len_bytes = 512 * (1 + user);
                client.submit(Request { offset_bytes, len_bytes, ..request(Op::Write, user) });
            }
            client.wait(20, &mut Vec::new());
            if round < 5 {
                assert_eq!(run(&mut client, Op::Flush), BlkStatus::Ok);
                flushed.push(fs::read(&data).unwrap());
            }
        }
        // Simulates a crash here: the last round was never flushed.
        let reader = LogReader::open(&log).unwrap();
        let scratch = files.dir.path().join("replayed");
        let is_flush = |at: &usize| reader.entries()[*at].flags & FLUSH != 0;
        let flushes: Vec<_> = (0..reader.entries().len()).filter(is_flush).collect();
        assert_eq!((flushes.len(), reader.entries().len()), (5, 5 * 21));
        for (number, at) in flushes.into_iter().enumerate() {
            assert!(replayed(&reader, at, &scratch) == flushed[number], "flush {number}");
        }
        drop(client);
        let reader = LogReader::open(&log).unwrap();
        let all = replayed(&reader, reader.entries().len(), &scratch);
        assert!(all == fs::read(&data).unwrap(), "a complete log has unflushed data too");
    }
}

/// Writes its half of the device and flushes, repeatedly. Flushed data must be in the log after the
/// flush, regardless of the other thread.
fn write_half(volume: &Arc<Volume>, half: u64, files: &Files, data: &Path, log: &Path) {
    let mut client = Client::new(volume, Priority::default()).unwrap();
    let scratch = files.dir.path().join(format!("replayed-{half}"));
    let half_bytes = SIZE_BYTES as u64 / 2;
    let mut place = half + 1;
    for _ in 0..20 {
        for user in 0..8 {
            place = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let offset_bytes = half * half_bytes + (place >> 33) % (half_bytes / 4096) * 4096;
            client.submit(Request { offset_bytes, ..request(Op::Write, user) });
        }
        client.wait(8, &mut Vec::new());
        assert_eq!(run(&mut client, Op::Flush), BlkStatus::Ok);
        let reader = LogReader::open(log).unwrap();
        let device = replayed(&reader, reader.entries().len(), &scratch);
        let range = (half * half_bytes) as usize..((half + 1) * half_bytes) as usize;
        assert!(device[range.clone()] == fs::read(data).unwrap()[range], "half {half}");
    }
}

#[test]
fn log_of_two_connections_has_what_each_has_flushed() {
    let files = Files::on_disk();
    let data = files.file("data");
    let log = files.file("log");
    let volume = volume(&format!("0 {SECTORS} log-writes {} {}", data.display(), log.display()));
    std::thread::scope(|scope| {
        for half in 0..2 {
            let volume = &volume;
            let files = &files;
            let data = &data;
            let log = &log;
            scope.spawn(move || write_half(volume, half, files, data, log));
        }
    });
}

#[test]
fn load_ends_with_a_flush_that_the_log_has() {
    let files = Files::in_memory();
    let data = files.file("data");
    let log = files.file("log");
    let volume = volume(&format!("0 {SECTORS} log-writes {} {}", data.display(), log.display()));
    fill(&volume, &plaintext(0));
    let reader = LogReader::open(&log).unwrap();
    let all = replayed(&reader, reader.entries().len(), &files.dir.path().join("r"));
    assert!(all == plaintext(0));
}

#[test]
fn table_that_does_not_fit_says_which_file_and_why() {
    let files = Files::in_memory();
    let path = files.file("a");
    let path = path.display();
    let options = VolumeOptions::default();
    for line in [
        format!("0 4096 striped 2 8 {path} 0 {path} 8"),
        format!("0 {SECTORS} delay {path} 0 0 {path} 1 5"),
        format!("0 {SECTORS} flakey {path} 1 1 1"),
        format!("0 {SECTORS} loop {path} 1"),
        format!("0 4096 log-writes {path} {path}.log"),
    ] {
        let problem = fails(&line, &options);
        assert!(problem.contains(&format!("{path}: has {SECTORS} sectors")), "{problem}");
    }
    let log = files.file("log");
    let line = format!("0 {SECTORS} log-writes {path} {}", log.display());
    let read_only = VolumeOptions { read_only: true, ..VolumeOptions::default() };
    assert!(fails(&line, &read_only).contains("leave `read_only` out"));
    assert!(fails(&line.replace("/log", "/none"), &options).contains("cannot open"));
}

/// `upper` writes the same ciphertext on a mapped device as on a file.
#[test]
fn crypt_on_every_mapped_device_reads_back_and_is_encrypted_below() {
    let key = "5a".repeat(64);
    for files in [Files::in_memory(), Files::on_disk()] {
        let path = files.file("disk");
        let file = path.display();
        for below in [
            "low: 0 2048 ram".to_owned(),
            "low: 0 1024 ram\nlow: 1024 1024 null 1 memory_backed:1".to_owned(),
            format!("low: 0 2048 linear {file} 0"),
            format!("low: 0 2048 loop {file} 0"),
            format!("low: 0 2048 delay {file} 0 0 {file} 0 1"),
            format!("a: 0 2048 linear {file} 0\nlow: 0 2048 striped 1 8 /dev/mapper/a 0"),
        ] {
            for pipeline in ["adaptive", "inline", "E", "G"] {
                let table =
                    format!("{below}\ntop: 0 2040 crypt aes-xts-plain64 {key} 0 /dev/mapper/low 8");
                let options = VolumeOptions {
                    pipeline: PipelineChoice::parse(pipeline).unwrap(),
                    ..VolumeOptions::default()
                };
                let text = SecretBytes::copy_of(table.as_bytes());
                let stacked = Arc::new(Volume::from_table(&text, &options).unwrap());
                let bytes = plaintext(pipeline.len() as u64)[4096..].to_vec();
                fill(&stacked, &bytes);
                stacked.flush().unwrap();
                assert!(contents(&stacked) == bytes, "{pipeline} {below}");
                drop(stacked);
                if below.contains(&file.to_string()) {
                    let alone = volume(&format!("0 2040 crypt aes-xts-plain64 {key} 0 {file} 8"));
                    assert!(contents(&alone) == bytes, "{pipeline} {below}");
                }
            }
        }
    }
}

#[test]
fn crypt_on_null_forgets_writes_and_reads_decrypted_zeros() {
    let key = "5a".repeat(64);
    let stacked = volume(&format!(
        "low: 0 2048 null\ntop: 0 2048 crypt aes-xts-plain64 {key} 0 /dev/mapper/low 0"
    ));
    fill(&stacked, &plaintext(1));
    let files = Files::in_memory();
    let zeros = files.file("zeros");
    let of_zeros = volume(&format!("0 2048 crypt aes-xts-plain64 {key} 0 {} 0", zeros.display()));
    assert!(contents(&stacked) == contents(&of_zeros));
}

/// Features of a multipath line, without and with others.
const QUEUE_MODES: [&str; 3] = ["2 queue_mode bio", "2 queue_mode rq", "2 queue_mode mq"];

/// Devices over one file: one fails always, one works in its first half, and one works.
fn paths_to(file: &Path) -> String {
    let path = file.display();
    let half = SECTORS / 2;
    format!(
        "down: 0 {SECTORS} flakey {path} 0 0 1\n\
         half: 0 {half} linear {path} 0\nhalf: {half} {half} flakey {path} {half} 0 1\n\
         up: 0 {SECTORS} linear {path} 0\n"
    )
}

#[test]
fn multipath_serves_through_the_path_that_works() {
    let [down, half, up] = ["down", "half", "up"].map(|name| format!("/dev/mapper/{name}"));
    for (files, mode) in [Files::in_memory(), Files::on_disk()]
        .iter()
        .flat_map(|files| QUEUE_MODES.map(|mode| (files, mode)))
    {
        let file = files.file("a");
        let devices = paths_to(&file);
        let top = format!("top: 0 {SECTORS} multipath {mode}");
        for paths in [
            format!("0 1 1 round-robin 0 3 0 {down} {half} {up}"),
            format!("0 2 1 queue-length 0 1 0 {half} service-time 0 2 0 {down} {up}"),
            format!("0 1 1 io-affinity 0 3 1 {down} 0000000f {half} 0000fff0 {up} ffff0000"),
        ] {
            let volume = volume(&format!("{devices}{top} {paths}"));
            let bytes = plaintext(paths.len() as u64);
            fill(&volume, &bytes);
            assert!(contents(&volume) == bytes, "{mode} {paths}");
            assert!(fs::read(&file).unwrap() == bytes, "{mode} {paths}");
            let mut client = Client::new(&volume, Priority::default()).unwrap();
            assert_eq!(run(&mut client, Op::Flush), BlkStatus::Ok, "{mode} {paths}");
        }
        let dead = devices.lines().next().unwrap();
        let paths = format!("0 1 1 round-robin 0 2 0 {down} {down}");
        let mut client = client(&format!(
            "{dead}
{top} {paths}"
        ));
        for op in [Op::Read, Op::Write, Op::Flush] {
            assert_eq!(run(&mut client, op), BlkStatus::IoError, "{mode} {op:?}");
        }
    }
    let none = fails("0 8 multipath 1 queue_if_no_path 0 0 0", &VolumeOptions::default());
    assert!(none.contains("has no path"), "{none}");
}

#[test]
fn write_in_pages_that_is_cut_below_is_written_from_where_it_is_cut() {
    let files = Files::in_memory();
    let a = files.file("a");
    let b = files.file("b");
    let key = "5a".repeat(64);
    let table = format!(
        "stripes: 0 {SECTORS} striped 2 16 {} 0 {} 0\n\
         top: 0 {SECTORS} crypt aes-xts-plain64 {key} 0 /dev/mapper/stripes 0",
        a.display(),
        b.display()
    );
    let text = SecretBytes::copy_of(table.as_bytes());
    for pages in ["single", "bulk-list", "compound"] {
        let bounce = BounceChoice::parse(pages).unwrap();
        let options = VolumeOptions { bounce, ..VolumeOptions::default() };
        let volume = Arc::new(Volume::from_table(&text, &options).unwrap());
        let bytes = plaintext(pages.len() as u64);
        fill(&volume, &bytes);
        assert!(contents(&volume) == bytes, "{pages}");
    }
}

#[test]
fn elevator_is_that_of_the_requests_over_the_paths() {
    let files = Files::in_memory();
    let file = files.file("a");
    let options = |elevator| {
        let elevator = Some(ElevatorSpec::parse(elevator).unwrap());
        let scheduling = Scheduling { elevator, queue_depth: Some(2), ..Scheduling::default() };
        VolumeOptions { scheduling, ..VolumeOptions::default() }
    };
    let line = |mode| {
        let paths = format!("0 1 1 service-time 0 1 0 {}", file.display());
        format!("0 {SECTORS} multipath 2 queue_mode {mode} {paths}")
    };
    for (elevator, seed) in ["none", "mq-deadline", "deadline", "cfq"].into_iter().zip(1..) {
        let text = SecretBytes::copy_of(line("mq").as_bytes());
        let volume = Arc::new(Volume::from_table(&text, &options(elevator)).unwrap());
        assert_eq!(volume.elevator().split(',').next(), Some(elevator));
        let bytes = plaintext(seed);
        fill(&volume, &bytes);
        assert!(contents(&volume) == bytes && fs::read(&file).unwrap() == bytes, "{elevator}");
    }
    let refused = fails(&line("bio"), &options("cfq"));
    assert!(refused.contains("elevator cfq cannot be used"), "{refused}");
}

#[test]
fn stacks_that_cannot_be_are_refused_by_name() {
    let files = Files::in_memory();
    let disk = files.file("disk");
    let log = files.file("log");
    let disk = disk.display();
    let log = log.display();
    let crypt = |name: &str, device: &str, len: u32| {
        format!("{name}: 0 {len} crypt aes-xts-plain64 {} 0 {device} 0\n", "5a".repeat(64))
    };
    let low = "/dev/mapper/low";
    let options = VolumeOptions::default();
    for (table, problem) in [
        (format!("low: 0 8 zero\ntop: 0 16 linear {low} 0"), "has 8 sectors"),
        (
            format!("low: 0 8 log-writes {disk} {log}\ntop: 0 8 linear {low} 0"),
            "only the last device",
        ),
        (format!("low: 0 8 zero\ntop: 0 8 log-writes {low} {log}"), "only a file or block device"),
        (
            format!(
                "low: 0 8 null\n{}{}",
                crypt("mid", low, 8),
                crypt("top", "/dev/mapper/mid", 8)
            ),
            "one of them at a time",
        ),
    ] {
        let said = fails(&table, &options);
        assert!(said.contains(problem), "{table}: {said}");
    }
}
