//! The header of a LUKS volume: sector size, cipher, memory of keyslots.

use std::path::Path;

use blockyard_crypt::info::{KdfCost, KdfInfo};
use blockyard_crypt::luks::HeaderInfo;

use super::{Fact, Finding, Weakness};

/// With fewer iterations of PBKDF2, passphrases are tried too fast today; cryptsetup uses a million
/// and more. Ours.
const ITERATIONS_MIN: u32 = 100_000;
/// Ciphers without CPU instructions.
const SLOW_CIPHERS: [&str; 5] = ["serpent", "twofish", "camellia", "cast5", "cast6"];

/// All findings of a header at `path` ([`Header::info`](crate::Header::info)), for a process with
/// this memory limit; `lacks_trim` is true if only the header could allow TRIM.
pub(super) fn findings(
    path: &Path,
    info: &HeaderInfo,
    memory_bytes: u64,
    lacks_trim: bool,
) -> Vec<Finding> {
    let header = Header { info, memory_bytes };
    let mut facts: Vec<Fact> = header.sectors().into_iter().collect();
    facts.extend(header.ciphers());
    facts.extend(header.keyslots());
    facts.extend(header.discards().filter(|_| lacks_trim));
    facts.into_iter().map(|fact| Finding::at(path, fact)).collect()
}

struct Header<'a> {
    info: &'a HeaderInfo,
    memory_bytes: u64,
}

/// Encryption of a data segment. LUKS1 has no segments: it counts as one.
struct Segment<'a> {
    cipher: &'a str,
    sector_size_bytes: u32,
}

impl Header<'_> {
    fn is_luks1(&self) -> bool {
        matches!(self.info, HeaderInfo::Luks1(_))
    }

    fn segments(&self) -> Vec<Segment<'_>> {
        match self.info {
            HeaderInfo::Luks1(info) => {
                let sector_size_bytes = info.sector_size_bytes;
                vec![Segment { cipher: &info.cipher, sector_size_bytes }]
            }
            HeaderInfo::Luks2(info) => {
                let encrypted = info.segments.values().filter_map(|one| one.encryption.as_ref());
                let segment = encrypted.map(|encryption| Segment {
                    cipher: &encryption.cipher,
                    sector_size_bytes: encryption.sector_size_bytes,
                });
                segment.collect()
            }
        }
    }

    fn sectors(&self) -> Option<Fact> {
        let is_small = |segment: &Segment<'_>| segment.sector_size_bytes == 512;
        self.segments().into_iter().find(is_small)?;
        Some(Fact::SmallSectors { is_luks1: self.is_luks1() })
    }

    fn ciphers(&self) -> Vec<Fact> {
        self.segments().into_iter().filter_map(|segment| cipher(segment.cipher)).collect()
    }

    fn keyslots(&self) -> Vec<Fact> {
        let kdfs: Vec<(u32, Option<&KdfInfo>)> = match self.info {
            HeaderInfo::Luks1(info) => {
                info.keyslots.iter().map(|(number, slot)| (*number, Some(&slot.kdf))).collect()
            }
            HeaderInfo::Luks2(info) => {
                info.keyslots.iter().map(|(number, slot)| (*number, slot.kdf.as_ref())).collect()
            }
        };
        if kdfs.is_empty() {
            return vec![Fact::NoKeyslot];
        }
        kdfs.into_iter().filter_map(|(number, kdf)| self.keyslot(number, kdf?)).collect()
    }

    fn keyslot(&self, number: u32, kdf: &KdfInfo) -> Option<Fact> {
        let keyslot = number.to_string();
        let available_bytes = self.memory_bytes;
        match kdf.cost {
            KdfCost::Argon2 { memory_kib, .. } => {
                let needed_bytes = u64::from(memory_kib) * 1024;
                let fact = Fact::KeyslotMemory { keyslot, needed_bytes, available_bytes };
                (needed_bytes > available_bytes).then_some(fact)
            }
            KdfCost::Pbkdf2 { iterations, .. } => {
                let is_luks1 = self.is_luks1();
                let fact =
                    Fact::KeyslotIterations { keyslot, iterations: iterations.into(), is_luks1 };
                (iterations < ITERATIONS_MIN).then_some(fact)
            }
            KdfCost::Unknown {} => None,
        }
    }

    fn discards(&self) -> Option<Fact> {
        let is_allowed = match self.info {
            HeaderInfo::Luks1(_) => false,
            HeaderInfo::Luks2(info) => info.flags.iter().any(|flag| flag == "allow-discards"),
        };
        (!is_allowed).then_some(Fact::NoTrim)
    }
}

fn cipher(cipher: &str) -> Option<Fact> {
    let weakness = match () {
        () if cipher.contains("cipher_null") => Some(Weakness::Null),
        () if cipher.contains("-ecb") => Some(Weakness::Ecb),
        () if cipher.contains("-cbc-plain") => Some(Weakness::PlainIv),
        () => None,
    };
    let is_slow = SLOW_CIPHERS.iter().any(|slow| cipher.starts_with(slow));
    let cipher = cipher.to_owned();
    match weakness {
        Some(weakness) => Some(Fact::WeakCipher { cipher, weakness }),
        None => is_slow.then_some(Fact::SlowCipher { cipher }),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use blockyard_crypt::{luks1, luks2};

    use super::*;

    /// A header with one segment, and keyslot 3.
    fn luks2(cipher: &str, sector_size_bytes: u32, kdf: &KdfInfo, flags: &[&str]) -> HeaderInfo {
        let encryption = luks2::SegmentEncryption {
            cipher: cipher.into(),
            cipher_table_based: None,
            sector_size_bytes,
            iv_tweak: 0,
            integrity: None,
        };
        let segment = luks2::SegmentInfo {
            kind: "crypt".into(),
            offset_bytes: 16 << 20,
            len_bytes: None,
            flags: Vec::new(),
            encryption: Some(encryption),
        };
        let keyslot = luks2::KeyslotInfo {
            kind: "luks2".into(),
            unbound: false,
            priority: "normal",
            key_size_bits: 512,
            problem: None,
            area: luks2::AreaInfo {
                kind: "raw".into(),
                offset_bytes: 32 << 10,
                len_bytes: 252 << 10,
                encryption: None,
            },
            kdf: Some(kdf.clone()),
            af: None,
        };
        HeaderInfo::Luks2(luks2::Info {
            uuid: String::new(),
            label: String::new(),
            subsystem: String::new(),
            seqid: 1,
            metadata_area_bytes: 16 << 10,
            keyslots_area_bytes: 1 << 20,
            flags: flags.iter().map(|flag| (*flag).into()).collect(),
            requirements: Vec::new(),
            segments: BTreeMap::from([(0, segment)]),
            keyslots: BTreeMap::from([(3, keyslot)]),
            tokens: BTreeMap::new(),
            digests: BTreeMap::new(),
        })
    }

    fn argon2() -> KdfInfo {
        let cost = KdfCost::Argon2 { time: 4, memory_kib: 1 << 20, cpus: 4 };
        KdfInfo { kind: "argon2id".into(), cost }
    }

    fn of(info: &HeaderInfo, memory_bytes: u64) -> Vec<Fact> {
        let findings = findings("disk.img".as_ref(), info, memory_bytes, true);
        findings.into_iter().map(|one| one.fact).collect()
    }

    #[test]
    fn good_header_has_no_findings() {
        let info = luks2("aes-xts-plain64", 4096, &argon2(), &["allow-discards"]);
        assert_eq!(of(&info, 1 << 30), []);
        let info = luks2("aes-xts-plain64", 4096, &argon2(), &[]);
        assert_eq!(findings("disk.img".as_ref(), &info, 1 << 30, false), []);
    }

    #[test]
    fn each_defect_of_a_header_is_a_finding() {
        let plenty = 1 << 40;
        let cost = KdfCost::Pbkdf2 { hash: "sha1".into(), iterations: 4000 };
        let weak = KdfInfo { kind: "pbkdf2".into(), cost };
        let allowed = ["allow-discards"];
        let aes = "aes-xts-plain64";
        let weak_cipher =
            |cipher: &str, weakness| Fact::WeakCipher { cipher: cipher.into(), weakness };
        for (info, memory_bytes, wanted) in [
            (luks2(aes, 512, &argon2(), &allowed), plenty, Fact::SmallSectors { is_luks1: false }),
            (
                luks2(aes, 4096, &argon2(), &allowed),
                512 << 20,
                Fact::KeyslotMemory {
                    keyslot: "3".into(),
                    needed_bytes: 1 << 30,
                    available_bytes: 512 << 20,
                },
            ),
            (
                luks2(aes, 4096, &weak, &allowed),
                plenty,
                Fact::KeyslotIterations { keyslot: "3".into(), iterations: 4000, is_luks1: false },
            ),
            (luks2(aes, 4096, &argon2(), &[]), plenty, Fact::NoTrim),
            (
                luks2("serpent-xts-plain64", 4096, &argon2(), &allowed),
                plenty,
                Fact::SlowCipher { cipher: "serpent-xts-plain64".into() },
            ),
            (
                luks2("aes-cbc-plain", 4096, &argon2(), &allowed),
                plenty,
                weak_cipher("aes-cbc-plain", Weakness::PlainIv),
            ),
            (
                luks2("aes-ecb", 4096, &argon2(), &allowed),
                plenty,
                weak_cipher("aes-ecb", Weakness::Ecb),
            ),
            (
                luks2("cipher_null-ecb", 4096, &argon2(), &allowed),
                plenty,
                weak_cipher("cipher_null-ecb", Weakness::Null),
            ),
        ] {
            assert_eq!(of(&info, memory_bytes), [wanted]);
        }
    }

    #[test]
    fn luks1_volume_with_small_sectors_and_a_header_without_keyslots_are_findings() {
        let info = HeaderInfo::Luks1(luks1::Info {
            uuid: String::new(),
            cipher: "aes-xts-plain64".into(),
            cipher_table_based: Some(false),
            key_size_bits: 512,
            hash: "sha256".into(),
            data_offset_bytes: 2 << 20,
            sector_size_bytes: 512,
            keyslots: BTreeMap::new(),
            digest: luks1::DigestInfo { hash: "sha256".into(), iterations: 1000 },
        });
        let wanted = [Fact::SmallSectors { is_luks1: true }, Fact::NoKeyslot, Fact::NoTrim];
        assert_eq!(of(&info, 1 << 30), wanted);
    }
}
