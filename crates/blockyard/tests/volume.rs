//! A volume from a program's view: any offset, any length, any thread.

#[path = "../../crypt/tests/tcrypt_maker/mod.rs"]
mod tcrypt_maker;

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use blockyard::{
    HiddenKey, KdfLimits, Key, LuksVersion, PlainOptions, SecretBytes, Server, TcryptKind,
    TcryptOptions, Volume,
};

const SIZE_BYTES: usize = 1 << 20;

/// An empty plain volume in a new folder.
fn plain(dir: &Path, sector_size_bytes: u32, len_bytes: u64) -> Volume {
    let path = dir.join("disk");
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(len_bytes).unwrap();
    options(sector_size_bytes).open(path).unwrap()
}

fn options(sector_size_bytes: u32) -> blockyard::Options {
    let cipher = "aes-xts-plain64".to_owned();
    let plain = PlainOptions { cipher, sector_size_bytes, ..PlainOptions::default() };
    let key: Vec<u8> = (0..32).collect();
    Volume::options().plain(plain).key(Key::File(SecretBytes::copy_of(&key)))
}

/// Pseudo-random numbers (xorshift), equal in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.below(256) as u8).collect()
    }

    /// Mostly short, sometimes many sectors.
    fn range(&mut self) -> std::ops::Range<usize> {
        let longest = [600, 9000, 700_000][self.below(3)];
        let start = self.below(SIZE_BYTES);
        start..(start + 1 + self.below(longest)).min(SIZE_BYTES)
    }
}

#[test]
fn any_offset_and_length_reads_what_was_written() {
    // The last volume ends inside a sector of 4096 bytes.
    for (sector, direct) in [(512, false), (4096, false), (4096, true)] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        std::fs::File::create(&path).unwrap().set_len(SIZE_BYTES as u64).unwrap();
        let volume = options(sector).direct(direct).open(&path).unwrap();
        assert_eq!((volume.len(), volume.sector_size()), (SIZE_BYTES as u64, sector));
        let mut model = vec![0; SIZE_BYTES];
        let mut random = Random(0x5eed + u64::from(sector));
        volume.zero(0..SIZE_BYTES as u64).unwrap();
        for step in 0..300 {
            let range = random.range();
            match random.below(8) {
                0 => {
                    volume.zero(range.start as u64..range.end as u64).unwrap();
                    model[range.clone()].fill(0);
                }
                1..=3 => {
                    let data = random.bytes(range.len());
                    volume.write_all_at(&data, range.start as u64).unwrap();
                    model[range.clone()].copy_from_slice(&data);
                }
                _ => {}
            }
            let mut read = vec![0xaa; range.len()];
            volume.read_exact_at(&mut read, range.start as u64).unwrap();
            assert!(read == model[range.clone()], "step {step}: {range:?} of {sector}");
        }
        volume.flush().unwrap();
        drop(volume);
        let again = options(sector).read_only(true).open(&path).unwrap();
        let mut read = Vec::new();
        again.cursor().read_to_end(&mut read).unwrap();
        assert!(read == model);
    }
}

#[test]
fn threads_that_write_parts_of_one_sector_lose_nothing() {
    const THREADS: usize = 4;
    let dir = tempfile::tempdir().unwrap();
    let volume = plain(dir.path(), 4096, SIZE_BYTES as u64);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let volume = &volume;
            scope.spawn(move || {
                // Parts of 100 bytes, so that each sector has parts of every thread.
                for part in (thread..SIZE_BYTES / 100).step_by(THREADS).take(500) {
                    let data = [thread as u8 + 1; 100];
                    volume.write_all_at(&data, part as u64 * 100).unwrap();
                }
            });
        }
    });
    let mut read = vec![0; 500 * THREADS * 100];
    volume.read_exact_at(&mut read, 0).unwrap();
    for (part, bytes) in read.chunks(100).enumerate() {
        assert!(bytes.iter().all(|byte| *byte == (part % THREADS) as u8 + 1), "part {part}");
    }
}

#[test]
fn end_of_a_volume_is_that_of_a_disk() {
    let dir = tempfile::tempdir().unwrap();
    let volume = plain(dir.path(), 512, 8192);
    let mut buffer = [0; 1024];
    assert_eq!(volume.read_at(&mut buffer, 8000).unwrap(), 192);
    assert_eq!(volume.read_at(&mut buffer, 8192).unwrap(), 0);
    assert_eq!(volume.read_at(&mut buffer, u64::MAX).unwrap(), 0);
    let error = volume.read_exact_at(&mut buffer, 8000).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    assert_eq!(volume.write_at(&[7; 1024], 8000).unwrap(), 192);
    assert_eq!(volume.write_at(&[], 8192).unwrap(), 0);
    let error = volume.write_at(&[7], 8192).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    let error = volume.write_all_at(&[8; 1024], 8000).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    volume.read_at(&mut buffer, 8000).unwrap();
    assert_eq!(buffer[..192], [7; 192], "a write that does not fit writes nothing");
    assert_eq!(volume.zero(8000..8193).unwrap_err().kind(), ErrorKind::StorageFull);
    #[expect(clippy::reversed_empty_ranges, reason = "a caller's mistake")]
    let reversed = 9..8;
    assert_eq!(volume.zero(reversed).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn volume_refuses_what_its_options_forbid() {
    let dir = tempfile::tempdir().unwrap();
    let writable = plain(dir.path(), 512, 8192);
    assert!(!writable.can_discard());
    assert_eq!(writable.discard(0..4096).unwrap_err().kind(), ErrorKind::Unsupported);
    drop(writable);
    let path = dir.path().join("disk");
    let volume = options(512).read_only(true).open(&path).unwrap();
    assert!(volume.is_read_only());
    for refused in [volume.write_at(&[1], 0).map(|_| ()), volume.zero(0..1)] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    }
    drop(volume);
    let volume = options(512).allow_discards(true).open(&path).unwrap();
    volume.write_all_at(&[1; 8192], 0).unwrap();
    volume.discard(100..5000).unwrap();
    let mut kept = [0; 100];
    volume.read_exact_at(&mut kept, 0).unwrap();
    assert_eq!(kept, [1; 100], "a sector that is discarded in part keeps its bytes");
}

/// Memory can always be written: only the volume's own check protects it.
#[test]
fn nothing_is_copied_into_a_read_only_volume() {
    let table = SecretBytes::copy_of(b"0 2048 ram");
    let volume = Volume::options().table_text(table).read_only(true).open("memory").unwrap();
    let refused = volume.copy_in(&mut &[1; 4096][..], &mut |_| ()).unwrap_err();
    assert!(refused.to_string().contains("read-only"), "{refused}");
    let mut data = [7; 4096];
    volume.read_exact_at(&mut data, 0).unwrap();
    assert_eq!(data, [0; 4096]);
}

#[test]
fn cursor_reads_writes_and_seeks() {
    let dir = tempfile::tempdir().unwrap();
    let volume = plain(dir.path(), 512, 8192);
    let mut cursor = volume.cursor();
    cursor.write_all(&[1; 700]).unwrap();
    cursor.write_all(&[2; 300]).unwrap();
    cursor.flush().unwrap();
    assert_eq!(cursor.seek(SeekFrom::Current(-310)).unwrap(), 690);
    let mut read = [0; 20];
    cursor.read_exact(&mut read).unwrap();
    assert_eq!(read[..10], [1; 10]);
    assert_eq!(read[10..], [2; 10]);
    assert_eq!(cursor.seek(SeekFrom::End(-1)).unwrap(), 8191);
    let error = cursor.write_all(&[3; 2]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    assert!(cursor.seek(SeekFrom::Current(-9000)).is_err());
}

fn unpacked(dir: &Path, image: &str) -> PathBuf {
    let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/volumes").join(image);
    let output = Command::new("xz").arg("-dc").arg(packed).output().unwrap();
    assert!(output.status.success(), "xz -dc {image}");
    let path = dir.join("image");
    std::fs::write(&path, output.stdout).unwrap();
    path
}

fn key() -> Key {
    Key::file(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/volumes/keys/p0")).unwrap()
}

#[test]
fn wrong_key_may_be_followed_by_another_try() {
    let dir = tempfile::tempdir().unwrap();
    let path = unpacked(dir.path(), "img/l2-small.img.xz");
    let locked = Volume::options().luks(LuksVersion::Luks2).read(&path).unwrap();
    assert!(locked.header().is_some() && locked.notices().is_empty() && locked.needs_key());
    let error = locked.unlock(&Key::passphrase("wrong")).unwrap_err();
    assert!(error.to_string().contains("image"), "{error}");
    let key = locked.unlock(&key()).unwrap();
    let volume = locked.start(key).unwrap();
    let mut first = [0; 512];
    volume.read_exact_at(&mut first, 0).unwrap();
    assert!(first.iter().any(|byte| *byte != 0));
}

#[test]
fn wrong_options_and_those_that_exclude_each_other_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = unpacked(dir.path(), "img/l2-small.img.xz");
    let mistakes = [
        (Volume::options(), "`key`"),
        (Volume::options().key(key()).header(""), "`header`: the path is empty"),
        (Volume::options().key(key()).luks(LuksVersion::Luks1), "not Luks1"),
        (Volume::options().key(key()).header_copy(blockyard::HeaderCopy::Primary), "`read_only`"),
        (options(512).keyslot(1), "`keyslot`"),
        (options(512).workers(1025), "`worker_threads`"),
        (options(512).minimum_block(0), "`minimum_block_bytes`"),
        (options(512).minimum_block(3), "`minimum_block_bytes`"),
        (options(512).minimum_block(8192), "`minimum_block_bytes`"),
    ];
    for (options, problem) in mistakes {
        let error = options.open(&path).unwrap_err().to_string();
        assert!(error.contains(problem) && error.contains("image"), "{error}");
    }
}

#[test]
fn keys_are_in_no_debug_output() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    std::fs::File::create(&path).unwrap().set_len(8192).unwrap();
    let locked = options(512).read(&path).unwrap();
    let passphrase = Key::passphrase("hunter2");
    let key = locked.unlock(&passphrase).unwrap();
    for shown in [format!("{passphrase:?}"), format!("{key:?}"), format!("{locked:?}")] {
        assert!(!shown.contains("hunter2") && !shown.contains("104, 117"), "{shown}");
    }
}

/// The names of unblocked signals of a thread, except those that cannot be blocked.
fn unblocked_signals(name: &str) -> Vec<&'static str> {
    let known = [(1, "SIGHUP"), (2, "SIGINT"), (7, "SIGBUS"), (11, "SIGSEGV"), (15, "SIGTERM")];
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        if !status.starts_with(&format!("Name:\t{name}\n")) {
            continue;
        }
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t")).unwrap();
        let mask = u64::from_str_radix(mask, 16).unwrap();
        let open = known.into_iter().filter(|(number, _)| mask >> (number - 1) & 1 == 0);
        return open.map(|(_, name)| name).collect();
    }
    panic!("there is no thread {name}");
}

#[test]
fn served_volume_is_the_program_s_own_volume() {
    let dir = tempfile::tempdir().unwrap();
    let volume = plain(dir.path(), 512, SIZE_BYTES as u64);
    let socket = dir.path().join("nbd.sock");
    let server = Server::new().export("", &volume).unix(&socket).start().unwrap();
    let table = dir.path().join("table");
    let sectors = SIZE_BYTES / 512;
    let remote = format!("nbd+unix:///?socket={}", socket.display());
    std::fs::write(&table, format!("0 {sectors} linear {remote} 0\n")).unwrap();
    let client = Volume::options().table().open(&table).unwrap();
    client.write_all_at(b"from the client", 1000).unwrap();
    client.flush().unwrap();
    let mut read = [0; 15];
    volume.read_exact_at(&mut read, 1000).unwrap();
    assert_eq!(&read, b"from the client");
    volume.write_all_at(b"from the program", 5000).unwrap();
    let mut read = [0; 16];
    client.read_exact_at(&mut read, 5000).unwrap();
    assert_eq!(&read, b"from the program");
    assert_eq!(unblocked_signals("nbd server"), ["SIGBUS", "SIGSEGV"]);
    drop(client);
    server.stop().unwrap();
    assert!(!socket.exists(), "a server that has ended leaves no socket");
    volume.read_exact_at(&mut read, 5000).unwrap();
}

#[test]
fn server_without_an_export_or_with_no_place_for_clients_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let volume = plain(dir.path(), 512, 8192);
    for server in [Server::new(), Server::new().export("", &volume).max_connections(0)] {
        assert!(server.start().unwrap_err().to_string().contains("`max_connections`"));
    }
    let named = |name: &str| Server::new().export(name, &volume).unix(dir.path().join("nbd"));
    let problem = |server: Server| server.start().unwrap_err().to_string();
    let twice = named("a").export("a", &volume);
    assert!(problem(twice).contains("two exports have this name"));
    let long = problem(named(&"ä".repeat(2049)));
    assert!(long.contains("at most 4096 bytes") && long.len() < 300, "{long}");
}

mod own {
    use std::sync::Arc;

    use blockyard::target::{
        Arguments, Flushes, Keys, Needs, Opened, Reserve, Sector, Target, TargetFacts, TargetSpec,
        TargetType,
    };

    /// A target that panics as soon as a client uses it.
    #[derive(Debug)]
    struct Panics;

    pub(crate) static PANICS: TargetType =
        TargetType { name: "panics", arguments: "", parse: |_, _| Ok(Arc::new(Panics)) };

    impl Arguments for Panics {
        fn write(&self, _: Keys, _: &mut dyn std::fmt::Write) -> std::fmt::Result {
            Ok(())
        }

        fn needs(&self, _: Sector) -> Needs<'_> {
            Needs::default()
        }

        fn open(&self, _: Opened) -> Result<Arc<dyn TargetSpec>, String> {
            Ok(Arc::new(Self))
        }
    }

    impl TargetSpec for Panics {
        fn facts(&self) -> TargetFacts {
            TargetFacts::new(Flushes::Mapped)
        }

        fn build(&self, _: u16, _: Reserve) -> Box<dyn Target> {
            panic!("a defect of the target");
        }
    }
}

#[test]
fn panic_in_a_target_of_the_program_is_an_error_that_names_it() {
    let text = SecretBytes::copy_of(b"0 2048 panics");
    let volume = Volume::options().target(&own::PANICS).table_text(text).open("table").unwrap();
    let read = volume.read_at(&mut [0; 512], 0).unwrap_err().to_string();
    let client = volume.client(blockyard::client::Priority::default()).err().unwrap().to_string();
    let copy = volume.copy_out(&mut Vec::new(), &mut |_| ()).unwrap_err().to_string();
    for error in [read, client, copy] {
        assert!(error.contains("the program's own target `panics`"), "{error}");
    }
}

#[test]
fn server_without_a_socket_or_with_an_empty_path_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let volume = plain(dir.path(), 512, 8192);
    let server = || Server::new().export("", &volume);
    let good = || server().unix(dir.path().join("nbd"));
    for (server, field) in [
        (server(), "needs a socket or a disk: `unix`"),
        (server().unix(""), "`unix`: the path is empty"),
        (good().control(""), "`control`: the path is empty"),
        (good().metrics_unix(""), "`metrics_unix`: the path is empty"),
    ] {
        let problem = server.start().unwrap_err().to_string();
        assert!(problem.contains(field), "{problem}");
    }
    good().start().unwrap().stop().unwrap();
}

#[test]
fn clients_of_their_own_have_many_requests_in_flight() {
    use blockyard::client::{Op, Priority, Request};
    let dir = tempfile::tempdir().unwrap();
    let volume = plain(dir.path(), 512, SIZE_BYTES as u64);
    let mut client = volume.client(Priority::default()).unwrap();
    for user in 0..16 {
        let offset_bytes = user * 4096;
        let len_bytes = 4096;
        client.submit(Request { user, op: Op::Read, offset_bytes, len_bytes, sync: false });
    }
    let mut done = VecDeque::new();
    client.wait(16, &mut done);
    assert_eq!(done.len(), 16);
}

#[test]
fn calls_after_a_resize_reach_the_new_end() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    let volume = Volume::options().raw().open(file.path()).unwrap();
    // The client of this call is kept for the next one.
    volume.write_all_at(&[1; 4096], (1 << 20) - 4096).unwrap();
    file.as_file().set_len((3 << 20) + 100).unwrap();
    assert_eq!(volume.len(), 1 << 20);
    let resized = volume.resize().unwrap();
    assert_eq!((resized.from_bytes, resized.to_bytes, volume.len()), (1 << 20, 3 << 20, 3 << 20));
    assert!(volume.describe().starts_with("3145728 bytes"));
    volume.write_all_at(&[2; 8192], (1 << 20) - 4096).unwrap();
    let mut read = [0; 8192];
    volume.read_exact_at(&mut read, (1 << 20) - 4096).unwrap();
    assert_eq!(read, [2; 8192]);
    let mut copy = Vec::new();
    assert_eq!(volume.copy_out(&mut copy, &mut |_| ()).unwrap(), 3 << 20);
}

#[test]
fn hidden_volume_is_protected_or_nothing_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    std::fs::write(&path, tcrypt_maker::with_hidden(b"outer", b"hidden")).unwrap();
    let hidden = |passphrase: &str| HiddenKey {
        passphrase: SecretBytes::copy_of(passphrase.as_bytes()),
        pim: None,
        keyfiles: Vec::new(),
    };
    let limits = KdfLimits { seconds_max: 0, ..KdfLimits::default() };
    let outer = |tcrypt| {
        let options = Volume::options().tcrypt(tcrypt).key(Key::passphrase("outer"));
        options.kdf_limits(limits).protect_hidden(hidden("hidden"))
    };
    let usual = || outer(TcryptOptions::default());
    let volume = usual().open(&path).unwrap();
    let start = (tcrypt_maker::HIDDEN.start - tcrypt_maker::OUTER.start) as u64;
    volume.write_all_at(&[7; 1000], start - 1000).unwrap();
    assert!(volume.write_all_at(&[7; 1000], start - 999).is_err());
    assert!(volume.write_all_at(&[7], 0).is_err());
    volume.flush().unwrap();
    let mut bytes = [0; 1000];
    volume.read_exact_at(&mut bytes, start - 1000).unwrap();
    assert_eq!(bytes, [7; 1000]);
    drop(volume);

    let refused = |options: blockyard::Options| options.open(&path).unwrap_err().to_string();
    let wrong = refused(usual().protect_hidden(hidden("wrong")));
    assert!(wrong.contains("no hidden volume opens"), "{wrong}");
    assert!(refused(usual().read_only(true)).contains("with `read_only`"));
    let kind = TcryptKind::Hidden;
    let of_hidden = outer(TcryptOptions { kind, ..TcryptOptions::default() });
    assert!(refused(of_hidden).contains("only an outer volume"));
    assert!(refused(options(512).protect_hidden(hidden("hidden"))).contains("outer volumes of"));
    // A key from elsewhere has no protection.
    let unprotected = Volume::options().tcrypt(TcryptOptions::default()).kdf_limits(limits);
    let locked = unprotected.read(&path).unwrap();
    let key = locked.unlock(&Key::passphrase("outer")).unwrap();
    drop(locked);
    let started = usual().read(&path).unwrap().start(key).unwrap_err().to_string();
    assert!(started.contains("without protection"), "{started}");
}
