//! Throughput of one core: every tier of this CPU beside OpenSSL in the same run, and then the
//! ciphers without tiers.
//!
//! ```text
//! cargo run --release -p blockyard-crypt --example cipher_bench --
//!     [--json] [--samples N] [--call BYTES]
//! ```
//!
//! A sample is a few MiB through one implementation. Samples of all implementations alternate, so
//! that other load hits all alike. Each figure is the median of the samples' thread CPU times.
//! OpenSSL gets its key once and a new IV for every sector, as a disk requires; for CBC its IVs are
//! not even encrypted. *Hot* buffers of 64 KiB stay in the L2 cache. *Cold* walks go through 512
//! MiB, with one side hot and the other uncached, as between a socket and a file. `--call BYTES`
//! cuts a hot buffer into calls of this length, because a call has a cost of its own.

use std::fmt::Write as _;
use std::hint::black_box;
use std::process::ExitCode;

use blockyard_crypt::cipher::{CipherSpec, Hints, SectorCipher, Tier};
use openssl::cipher::Cipher;
use openssl::cipher_ctx::CipherCtx;
use rustix::time::{ClockId, clock_gettime};

const HOT_BYTES: usize = 64 << 10;
/// Largest encryption sector; `--call` takes its multiples.
const SECTOR_BYTES_MAX: usize = 4096;
const COLD_BYTES: usize = 512 << 20;
/// Bytes of a sample: at least a millisecond for the fastest implementation.
const SAMPLE_BYTES: usize = 16 << 20;
/// Bytes of a sample of ciphers other than AES.
const SLOW_SAMPLE_BYTES: usize = 1 << 20;
const SAMPLES_DEFAULT: usize = 15;

/// One line of the table.
#[derive(Clone, Copy)]
struct Case {
    spec: &'static str,
    key_len_bytes: usize,
    sector_bytes: usize,
    encrypt: bool,
    memory: Memory,
    hints: Hints,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Memory {
    /// In place.
    Hot,
    /// Encryption into cold memory, decryption out of it.
    Cold,
}

impl Case {
    /// Whether the cipher has kernels by tier.
    fn is_tiered(&self) -> bool {
        matches!(self.spec, "aes-xts-plain64" | "aes-cbc-essiv:sha256")
    }

    fn sample_bytes(&self) -> usize {
        if self.is_tiered() { SAMPLE_BYTES } else { SLOW_SAMPLE_BYTES }
    }

    fn title(&self) -> String {
        let memory = match (self.memory, self.encrypt) {
            (Memory::Hot, _) => "hot, in place",
            (Memory::Cold, true) => "hot -> cold",
            (Memory::Cold, false) => "cold -> hot",
        };
        let hint = match (self.hints.prefetch_source, self.hints.stream_dest) {
            (true, _) => ", prefetch_source",
            (_, true) => ", stream_dest",
            _ => "",
        };
        let direction = if self.encrypt { "encrypt" } else { "decrypt" };
        format!("{:>4} B {direction}  {memory}{hint}", self.sector_bytes)
    }
}

/// One column of the table.
enum Implementation {
    Ours(SectorCipher),
    OpenSsl {
        context: CipherCtx,
        sector_bytes: usize,
        /// Buffer for "in place", which OpenSSL's binding refuses for CBC: one sector, always hot.
        scratch: Vec<u8>,
    },
}

impl Implementation {
    fn all(case: &Case) -> Vec<(String, Self)> {
        let key: Vec<u8> = (0..case.key_len_bytes).map(|byte| byte as u8).collect();
        let spec = CipherSpec::parse(case.spec).expect("a constant of this file");
        let sector_bytes = u32::try_from(case.sector_bytes).expect("4096 at most");
        if !case.is_tiered() {
            let cipher = SectorCipher::new(&spec, &key, sector_bytes, false);
            return vec![("ours".to_owned(), Self::Ours(cipher.expect("a key that it takes")))];
        }
        let mut all: Vec<(String, Self)> = Tier::available()
            .into_iter()
            .map(|tier| {
                let cipher = SectorCipher::with_tier(&spec, &key, sector_bytes, false, tier);
                (tier.name().to_owned(), Self::Ours(cipher.expect("the tier is available")))
            })
            .collect();
        let cipher = match (case.spec, case.key_len_bytes) {
            ("aes-xts-plain64", 32) => Cipher::aes_128_xts(),
            ("aes-xts-plain64", _) => Cipher::aes_256_xts(),
            (_, 16) => Cipher::aes_128_cbc(),
            _ => Cipher::aes_256_cbc(),
        };
        let mut context = CipherCtx::new().expect("OpenSSL allocates a context");
        if case.encrypt {
            context.encrypt_init(Some(cipher), Some(&key), None)
        } else {
            context.decrypt_init(Some(cipher), Some(&key), None)
        }
        .expect("OpenSSL takes the key");
        context.set_padding(false);
        let sector_bytes = case.sector_bytes;
        let scratch = vec![0; sector_bytes + 16];
        all.push(("openssl".to_owned(), Self::OpenSsl { context, sector_bytes, scratch }));
        all
    }

    fn run_in_place(&mut self, data: &mut [u8], sector: u64, encrypt: bool) {
        match self {
            Self::Ours(cipher) if encrypt => cipher.encrypt_in_place(data, sector),
            Self::Ours(cipher) => cipher.decrypt_in_place(data, sector),
            Self::OpenSsl { context, sector_bytes, scratch } => {
                for (index, data) in data.chunks(*sector_bytes).enumerate() {
                    set_iv(context, sector + index as u64, encrypt);
                    context.cipher_update(data, Some(scratch)).expect("a whole sector");
                }
            }
        }
    }

    fn run(&mut self, src: &[u8], dst: &mut [u8], sector: u64, encrypt: bool, hints: Hints) {
        match self {
            Self::Ours(cipher) if encrypt => cipher.encrypt(src, dst, sector, hints),
            Self::Ours(cipher) => cipher.decrypt(src, dst, sector, hints),
            Self::OpenSsl { context, sector_bytes, .. } => {
                let sectors = src.chunks(*sector_bytes).zip(dst.chunks_mut(*sector_bytes));
                for (index, (src, dst)) in sectors.enumerate() {
                    set_iv(context, sector + index as u64, encrypt);
                    context.cipher_update(src, Some(dst)).expect("a whole sector");
                }
            }
        }
    }
}

fn set_iv(context: &mut CipherCtx, sector: u64, encrypt: bool) {
    let mut iv = [0u8; 16];
    iv[..8].copy_from_slice(&sector.to_le_bytes());
    if encrypt {
        context.encrypt_init(None, None, Some(&iv))
    } else {
        context.decrypt_init(None, None, Some(&iv))
    }
    .expect("an IV of 16 bytes");
}

/// The buffers that all cases share.
struct Buffers {
    hot: Vec<u8>,
    /// Bytes of a call on the hot buffer.
    call_bytes: usize,
    cold: Vec<u8>,
    /// Start of the next cold sample.
    cold_at: usize,
}

/// Nanoseconds of this thread's CPU time.
fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// GB/s of one sample.
fn sample(case: &Case, implementation: &mut Implementation, buffers: &mut Buffers) -> f64 {
    let start = cpu_ns();
    match case.memory {
        Memory::Hot => {
            for round in 0..case.sample_bytes() / HOT_BYTES {
                for call in buffers.hot.chunks_mut(buffers.call_bytes) {
                    implementation.run_in_place(call, round as u64, case.encrypt);
                }
            }
        }
        Memory::Cold => {
            let piece = &mut buffers.cold[buffers.cold_at..][..SAMPLE_BYTES];
            for (index, cold) in piece.chunks_mut(HOT_BYTES).enumerate() {
                let sector = (index * HOT_BYTES / 512) as u64;
                let hot = &mut buffers.hot[..];
                if case.encrypt {
                    implementation.run(hot, cold, sector, true, case.hints);
                } else {
                    implementation.run(cold, hot, sector, false, case.hints);
                }
            }
            buffers.cold_at = (buffers.cold_at + SAMPLE_BYTES) % COLD_BYTES;
        }
    }
    black_box(&mut buffers.hot);
    case.sample_bytes() as f64 / (cpu_ns() - start) as f64
}

/// Medians of a case, one an implementation.
fn measure(case: &Case, buffers: &mut Buffers, samples: usize) -> Vec<(String, f64)> {
    let mut all = Implementation::all(case);
    let mut figures = vec![Vec::with_capacity(samples); all.len()];
    for round in 0..=samples {
        for ((_, implementation), figures) in all.iter_mut().zip(&mut figures) {
            let figure = sample(case, implementation, buffers);
            // The first round warms the caches and the clock.
            if round > 0 {
                figures.push(figure);
            }
        }
    }
    let median = |mut figures: Vec<f64>| {
        figures.sort_by(f64::total_cmp);
        figures[figures.len() / 2]
    };
    all.into_iter().map(|(name, _)| name).zip(figures.into_iter().map(median)).collect()
}

fn cases() -> Vec<Case> {
    let plain = Hints::default();
    let mut cases = Vec::new();
    for (spec, key_len_bytes, cold) in [
        ("aes-xts-plain64", 64, true),
        ("aes-xts-plain64", 32, false),
        ("aes-cbc-essiv:sha256", 32, false),
        ("aes-xts-benbi", 64, false),
        ("aes-lrw-benbi", 48, false),
        ("aes-cbc-plain64be", 32, false),
        ("aes-ecb", 32, false),
        ("serpent-xts-plain64", 64, false),
        ("serpent-cbc-plain64", 32, false),
        ("twofish-xts-plain64", 64, false),
        ("twofish-cbc-plain64", 32, false),
        ("camellia-xts-plain64", 64, false),
        ("camellia-cbc-plain64", 32, false),
        ("xchacha12,aes-adiantum-plain64", 32, false),
        ("xchacha20,aes-adiantum-plain64", 32, false),
    ] {
        for sector_bytes in [512, 4096] {
            for encrypt in [true, false] {
                let hot = Memory::Hot;
                let case =
                    Case { spec, key_len_bytes, sector_bytes, encrypt, memory: hot, hints: plain };
                cases.push(case);
                if cold {
                    let hints = Hints { prefetch_source: !encrypt, stream_dest: encrypt };
                    cases.push(Case { memory: Memory::Cold, ..case });
                    cases.push(Case { memory: Memory::Cold, hints, ..case });
                }
            }
        }
    }
    cases
}

/// Description of the machine.
fn machine() -> Vec<(&'static str, String)> {
    let cpu_info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = cpu_info.lines().find(|line| line.starts_with(name));
        let value = line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim());
        value.unwrap_or("unknown").to_owned()
    };
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let family = format!("family {} model {}", field("cpu family"), field("model\t"));
    vec![
        ("cpu", format!("{} ({family})", field("model name"))),
        ("best_tier", Tier::best().name().to_owned()),
        ("kernel", kernel.trim().to_owned()),
        ("openssl", openssl::version::version().to_owned()),
        ("blockyard", env!("CARGO_PKG_VERSION").to_owned()),
    ]
}

fn table_line(case: &Case, figures: &[(String, f64)]) -> String {
    let mut line = format!("{:<45}", case.title());
    for (_, gb_per_s) in figures {
        let _ = write!(line, "{gb_per_s:>10.2}");
    }
    let us_per_mib = f64::from(1 << 20) / 1000.0 / figures[0].1;
    let _ = write!(line, "{us_per_mib:>12.0}");
    line
}

fn json_row(case: &Case, figures: &[(String, f64)]) -> serde_json::Value {
    serde_json::json!({
        "cipher": case.spec,
        "key_bits": case.key_len_bytes * 8,
        "sector_bytes": case.sector_bytes,
        "direction": if case.encrypt { "encrypt" } else { "decrypt" },
        "memory": if case.memory == Memory::Hot { "hot" } else { "cold" },
        "prefetch_source": case.hints.prefetch_source,
        "stream_dest": case.hints.stream_dest,
        "gb_per_s": figures.iter().cloned().collect::<std::collections::BTreeMap<_, _>>(),
    })
}

fn main() -> ExitCode {
    let mut json = false;
    let mut samples = SAMPLES_DEFAULT;
    let mut call_bytes = HOT_BYTES;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let number = |text: Option<String>| text.and_then(|text| text.parse().ok());
        match argument.as_str() {
            "--json" => json = true,
            "--samples" => match number(arguments.next()) {
                Some(count @ 1..=1000) => samples = count,
                _ => return usage("`--samples` takes a number from 1 to 1000"),
            },
            "--call" => match number(arguments.next()) {
                Some(bytes)
                    if bytes > 0
                        && HOT_BYTES.is_multiple_of(bytes)
                        && bytes.is_multiple_of(SECTOR_BYTES_MAX) =>
                {
                    call_bytes = bytes;
                }
                _ => return usage("`--call` takes 4096, 8192, 16384, 32768 or 65536 bytes"),
            },
            other => return usage(&format!("unknown argument `{other}`")),
        }
    }
    // Writing all pages once replaces the kernel's zero page by memory.
    let hot = vec![0x5a; HOT_BYTES];
    let cold = vec![0xa5; COLD_BYTES];
    let mut buffers = Buffers { hot, call_bytes, cold, cold_at: 0 };
    let mut rows = Vec::new();
    if !json {
        for (name, value) in machine() {
            println!("{name}: {value}");
        }
        println!("GB/s per core (1e9 bytes, thread CPU time), median of {samples} samples");
        println!("hot: calls of {call_bytes} bytes");
    }
    let mut heading = (String::new(), 0);
    for case in cases() {
        let figures = measure(&case, &mut buffers, samples);
        if json {
            rows.push(json_row(&case, &figures));
            continue;
        }
        if heading != (case.spec.to_owned(), case.key_len_bytes) {
            heading = (case.spec.to_owned(), case.key_len_bytes);
            let title = format!("{}, {}-bit key", case.spec, case.key_len_bytes * 8);
            let names: String = figures.iter().map(|(name, _)| format!("{name:>10}")).collect();
            println!("\n{title:<45}{names}{:>12}", "us/MiB, 1st");
        }
        println!("{}", table_line(&case, &figures));
    }
    if json {
        let machine: std::collections::BTreeMap<_, _> = machine().into_iter().collect();
        let report = serde_json::json!({
            "machine": machine, "samples": samples, "call_bytes": call_bytes, "rows": rows,
        });
        println!("{report:#}");
    }
    ExitCode::SUCCESS
}

fn usage(problem: &str) -> ExitCode {
    eprintln!("cipher_bench: {problem}; usage: cipher_bench [--json] [--samples N] [--call BYTES]");
    ExitCode::from(2)
}
