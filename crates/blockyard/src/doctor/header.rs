//! The header of a LUKS volume: sector size, cipher, memory of keyslots.

use std::path::Path;

use serde_json::Value;

use super::{Fact, Finding, Weakness};

/// With fewer iterations of PBKDF2, passphrases are tried too fast today; cryptsetup uses a million
/// and more. Ours.
const ITERATIONS_MIN: u64 = 100_000;
/// Ciphers without CPU instructions.
const SLOW_CIPHERS: [&str; 5] = ["serpent", "twofish", "camellia", "cast5", "cast6"];

/// All findings of a header at `path` ([`Header::info`](crate::Header::info)), for a process with
/// this memory limit; `lacks_trim` is true if only the header could allow TRIM.
pub(super) fn findings(
    path: &Path,
    info: &Value,
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
    info: &'a Value,
    memory_bytes: u64,
}

impl Header<'_> {
    fn is_luks1(&self) -> bool {
        self.info["type"] == "luks1"
    }

    /// LUKS1 has no segments: it counts as one.
    fn segments(&self) -> Vec<&Value> {
        match self.info["segments"].as_object() {
            Some(segments) => segments.values().collect(),
            None => vec![self.info],
        }
    }

    fn sectors(&self) -> Option<Fact> {
        let is_small = |segment: &&Value| segment["sector_size_bytes"] == 512;
        self.segments().into_iter().find(is_small)?;
        Some(Fact::SmallSectors { is_luks1: self.is_luks1() })
    }

    fn ciphers(&self) -> Vec<Fact> {
        let ciphers = self.segments().into_iter().filter_map(|segment| segment["cipher"].as_str());
        ciphers.filter_map(cipher).collect()
    }

    fn keyslots(&self) -> Vec<Fact> {
        let keyslots = self.info["keyslots"].as_object();
        let Some(keyslots) = keyslots.filter(|keyslots| !keyslots.is_empty()) else {
            return vec![Fact::NoKeyslot];
        };
        keyslots.iter().filter_map(|(number, slot)| self.keyslot(number, &slot["kdf"])).collect()
    }

    fn keyslot(&self, number: &str, kdf: &Value) -> Option<Fact> {
        let (keyslot, available_bytes) = (number.to_owned(), self.memory_bytes);
        if let Some(memory_kib) = kdf["memory_kib"].as_u64() {
            let needed_bytes = memory_kib.saturating_mul(1024);
            let fact = Fact::KeyslotMemory { keyslot, needed_bytes, available_bytes };
            return (needed_bytes > available_bytes).then_some(fact);
        }
        let iterations = kdf["iterations"].as_u64()?;
        let fact = Fact::KeyslotIterations { keyslot, iterations, is_luks1: self.is_luks1() };
        (iterations < ITERATIONS_MIN).then_some(fact)
    }

    fn discards(&self) -> Option<Fact> {
        let flags = self.info["flags"].as_array();
        let allowed = flags.is_some_and(|flags| flags.iter().any(|flag| flag == "allow-discards"));
        (!allowed).then_some(Fact::NoTrim)
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
    use serde_json::json;

    use super::*;

    fn luks2(cipher: &str, sector_size_bytes: u32, kdf: &Value, flags: &Value) -> Value {
        json!({
            "type": "luks2",
            "flags": flags,
            "segments": {"0": {"cipher": cipher, "sector_size_bytes": sector_size_bytes}},
            "keyslots": {"3": {"kdf": kdf}},
        })
    }

    fn argon2() -> Value {
        json!({"type": "argon2id", "time": 4, "memory_kib": 1 << 20, "cpus": 4})
    }

    fn of(info: &Value, memory_bytes: u64) -> Vec<Fact> {
        let findings = findings("disk.img".as_ref(), info, memory_bytes, true);
        findings.into_iter().map(|one| one.fact).collect()
    }

    #[test]
    fn good_header_has_no_findings() {
        let info = luks2("aes-xts-plain64", 4096, &argon2(), &json!(["allow-discards"]));
        assert_eq!(of(&info, 1 << 30), []);
        let info = luks2("aes-xts-plain64", 4096, &argon2(), &json!([]));
        assert_eq!(findings("disk.img".as_ref(), &info, 1 << 30, false), []);
    }

    #[test]
    fn each_defect_of_a_header_is_a_finding() {
        let (plenty, none) = (1 << 40, json!([]));
        let weak = json!({"type": "pbkdf2", "hash": "sha1", "iterations": 4000});
        let allowed = json!(["allow-discards"]);
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
            (luks2(aes, 4096, &argon2(), &none), plenty, Fact::NoTrim),
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
        let info = json!({
            "type": "luks1", "cipher": "aes-xts-plain64", "sector_size_bytes": 512, "keyslots": {},
        });
        let wanted = [Fact::SmallSectors { is_luks1: true }, Fact::NoKeyslot, Fact::NoTrim];
        assert_eq!(of(&info, 1 << 30), wanted);
    }
}
