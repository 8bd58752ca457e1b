use super::*;
use crate::vectors::{lines, unhex};

fn derive(kdf: Kdf, password: &[u8], salt: &[u8], len: usize) -> Vec<u8> {
    let mut key = vec![0u8; len];
    kdf.derive(password, salt, &mut key, &KdfLimits::default()).unwrap();
    key
}

fn pbkdf2(hash: HashAlgorithm, iterations: u32) -> Kdf {
    Kdf::Pbkdf2 { hash, iterations }
}

fn argon2(variant: Argon2Variant, time: u32, memory_kib: u32, lanes: u32) -> Kdf {
    Kdf::Argon2 { variant, time, memory_kib, lanes }
}

#[test]
fn pbkdf2_gives_the_published_answers() {
    // RFC 6070.
    let sha1 = HashAlgorithm::Sha1;
    let rfc6070 = [
        (1, "0c60c80f961f0e71f3a9b524af6012062fe037a6"),
        (4096, "4b007901b765489abead49d926f721d065a429c1"),
    ];
    for (iterations, expected) in rfc6070 {
        let key = derive(pbkdf2(sha1, iterations), b"password", b"salt", 20);
        assert_eq!(key, unhex(expected));
    }
    let salt = b"saltSALTsaltSALTsaltSALTsaltSALTsalt";
    let key = derive(pbkdf2(sha1, 4096), b"passwordPASSWORDpassword", salt, 25);
    assert_eq!(key, unhex("3d2eec4fe41c849b80c8d83662c0e44a8b291a964cf2f07038"));
    let key = derive(pbkdf2(sha1, 4096), b"pass\0word", b"sa\0lt", 16);
    assert_eq!(key, unhex("56fa6aa75548099dcc37d7f03425e0c3"));
    // RFC 7914, section 11.
    let key = derive(pbkdf2(HashAlgorithm::Sha256, 1), b"passwd", b"salt", 64);
    let expected = "55ac046e56e3089fec1691c22544b605f94185216dde0465e68b9d57c20dacbc\
                    49ca9cccf179b645991664b39d77ef317c71b845b1e30bd509112041d3a19783";
    assert_eq!(key, unhex(expected));
}

#[test]
fn pbkdf2_agrees_with_another_implementation_for_every_hash() {
    for vector in lines(include_str!("../../../../testdata/vectors/kdf/pbkdf2.txt")) {
        let hash = HashAlgorithm::parse(vector[0]).unwrap();
        let kdf = pbkdf2(hash, vector[3].parse().unwrap());
        let expected = unhex(vector[4]);
        let key = derive(kdf, &unhex(vector[1]), &unhex(vector[2]), expected.len());
        assert_eq!(key, expected, "{vector:?}");
    }
}

#[test]
fn argon2_gives_the_published_answers() {
    // The reference implementation's own tests.
    let answers = [
        (
            argon2(Argon2Variant::I, 2, 65536, 1),
            "c1628832147d9720c5bd1cfd61367078729f6dfb6f8fea9ff98158e0d7816ed0",
        ),
        (
            argon2(Argon2Variant::Id, 2, 65536, 1),
            "09316115d5cf24ed5a15a31a3ba326e5cf32edc24702987c02b6566f61913cf7",
        ),
        (
            argon2(Argon2Variant::Id, 2, 256, 2),
            "6d093c501fd5999645e0ea3bf620d7b8be7fd2db59c20d9fff9539da2bf57037",
        ),
    ];
    for (kdf, expected) in answers {
        assert_eq!(derive(kdf, b"password", b"somesalt", 32), unhex(expected), "{kdf:?}");
    }
}

#[test]
fn argon2_agrees_with_another_implementation() {
    for vector in lines(include_str!("../../../../testdata/vectors/kdf/argon2.txt")) {
        let variant = if vector[0] == "argon2i" { Argon2Variant::I } else { Argon2Variant::Id };
        let number = |index: usize| vector[index].parse().unwrap();
        let expected = unhex(vector[6]);
        let kdf = argon2(variant, number(1), number(2), number(3));
        let key = derive(kdf, &unhex(vector[4]), &unhex(vector[5]), expected.len());
        assert_eq!(key, expected, "{vector:?}");
    }
}

fn refusal(kdf: Kdf) -> String {
    let mut key = [0u8; 64];
    kdf.derive(b"x", &[0; 32], &mut key, &KdfLimits::default()).unwrap_err().to_string()
}

#[test]
fn kdf_over_the_limits_is_refused_before_it_runs() {
    let memory = refusal(argon2(Argon2Variant::Id, 1, 1 << 30, 1));
    assert!(memory.contains("1073741824 KiB") && memory.contains("4194304 KiB"), "{memory}");
    assert!(memory.contains("`memory_kib_max`"), "{memory}");
    let passes = refusal(argon2(Argon2Variant::I, u32::MAX, 1 << 20, 4));
    assert!(passes.contains("`seconds_max`") && passes.contains("argon2i"), "{passes}");
    let lanes = refusal(argon2(Argon2Variant::Id, 1, 1 << 20, 17));
    assert!(lanes.contains("17 lanes"), "{lanes}");
    for hash in [HashAlgorithm::Sha1, HashAlgorithm::Sha256, HashAlgorithm::Whirlpool] {
        let iterations = refusal(pbkdf2(hash, 1 << 31));
        assert!(iterations.contains("2147483648 iterations"), "{iterations}");
    }
    assert!(refusal(pbkdf2(HashAlgorithm::Sha1, u32::MAX)).contains("`seconds_max`"));
}

#[test]
fn kdf_with_impossible_parameters_is_refused() {
    for kdf in [
        pbkdf2(HashAlgorithm::Sha256, 0),
        argon2(Argon2Variant::Id, 0, 1024, 1),
        argon2(Argon2Variant::Id, 1, 1024, 0),
        argon2(Argon2Variant::Id, 1, 0, 1),
        argon2(Argon2Variant::Id, 1, 31, 4),
    ] {
        let refused = kdf.check(64, &KdfLimits::default()).unwrap_err().to_string();
        assert!(refused.contains("impossible parameters"), "{kdf:?}: {refused}");
        assert_eq!(refusal(kdf), refused);
    }
}

#[test]
fn kdf_limits_can_be_raised() {
    let limits = KdfLimits { memory_kib_max: 512, ..KdfLimits::default() };
    let kdf = argon2(Argon2Variant::Id, 1, 1024, 1);
    assert!(kdf.check(32, &limits).is_err());
    assert!(kdf.check(32, &KdfLimits { memory_kib_max: 1024, ..limits }).is_ok());
    let slow = pbkdf2(HashAlgorithm::Sha256, u32::MAX);
    assert!(slow.check(32, &KdfLimits { seconds_max: 3600, ..limits }).is_ok());
}

#[test]
fn kdf_at_a_limit_is_allowed_and_above_it_is_not() {
    let limits = KdfLimits { memory_kib_max: 1024, lanes_max: 4, seconds_max: 2 };
    let id = |memory_kib, lanes| argon2(Argon2Variant::Id, 1, memory_kib, lanes);
    // SHA-256 does 2,900,000 iterations of a block in a second.
    let sha256 = |iterations| pbkdf2(HashAlgorithm::Sha256, iterations);
    for (at, above, len_bytes) in [
        (id(1024, 4), id(1025, 4), 32),
        (id(1024, 4), id(1024, 5), 32),
        (id(32, 4), id(31, 4), 32),
        (sha256(8_699_999), sha256(8_700_000), 32),
        (sha256(4_349_999), sha256(4_350_000), 33),
    ] {
        assert_eq!(at.check(len_bytes, &limits), Ok(()), "{at:?}");
        assert!(above.check(len_bytes, &limits).is_err(), "{above:?}");
    }
    let passes = |time| argon2(Argon2Variant::I, time, 1 << 20, 1);
    let limits = KdfLimits { memory_kib_max: 1 << 20, ..limits };
    assert_eq!(passes(2).check(32, &limits), Ok(()));
    assert!(passes(3).check(32, &limits).is_err());
}

/// Number of this process's threads with this name prefix. A thread without a name of its own
/// inherits that of its creator.
fn threads_named(start: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let name = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.ok()?.path().join("comm")).ok()
    };
    tasks.filter_map(name).filter(|name| name.starts_with(start)).count()
}

#[test]
fn threads_of_the_lanes_end_with_the_derivation() {
    let caller = std::thread::Builder::new().name("argon2-caller".into()).spawn(|| {
        let kdf = argon2(Argon2Variant::Id, 1, 1024, 4);
        kdf.derive(b"password", &[1; 16], &mut [0; 32], &KdfLimits::default()).unwrap();
        let start = std::time::Instant::now();
        // The system takes a moment to remove a joined thread.
        while threads_named("argon2-") > 1 && start.elapsed().as_secs() < 10 {
            std::thread::yield_now();
        }
        threads_named("argon2-")
    });
    assert_eq!(caller.unwrap().join().unwrap(), 1, "only the caller is left");
}
