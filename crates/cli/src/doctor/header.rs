//! The header of a LUKS volume: sector size, cipher, keyslots against the memory that there is.

use std::path::Path;

use serde_json::Value;

use super::{Finding, Grade, quoted};
use crate::size::human_size;

/// Fewer iterations of PBKDF2 are tried too fast today; cryptsetup makes a million and more. Ours.
const ITERATIONS_MIN: u64 = 100_000;
/// Ciphers without instructions of their own.
const SLOW_CIPHERS: [&str; 5] = ["serpent", "twofish", "camellia", "cast5", "cast6"];

/// What a header says about itself (`blockyard info --json`), on a machine where a process may have
/// so much memory. `path` is where the header lies; `lacks_trim` if only the header could allow
/// TRIM.
pub(crate) fn findings(
    path: &Path,
    info: &Value,
    memory_bytes: u64,
    lacks_trim: bool,
) -> Vec<Finding> {
    let header = Header { path, info, memory_bytes };
    let mut findings: Vec<Finding> = header.sectors().into_iter().collect();
    findings.extend(header.ciphers());
    findings.extend(header.keyslots());
    findings.extend(header.discards().filter(|_| lacks_trim));
    findings
}

struct Header<'a> {
    path: &'a Path,
    info: &'a Value,
    memory_bytes: u64,
}

impl Header<'_> {
    fn finding(&self, grade: Grade, seen: impl Into<String>, mend: impl Into<String>) -> Finding {
        Finding::new(grade, self.path.display().to_string(), seen, mend)
    }

    fn is_luks1(&self) -> bool {
        self.info["type"] == "luks1"
    }

    /// LUKS1 has no segments: it is one itself.
    fn segments(&self) -> Vec<&Value> {
        match self.info["segments"].as_object() {
            Some(segments) => segments.values().collect(),
            None => vec![self.info],
        }
    }

    fn sectors(&self) -> Option<Finding> {
        let is_small = |segment: &&Value| segment["sector_size_bytes"] == 512;
        self.segments().into_iter().find(is_small)?;
        let path = quoted(self.path);
        let seen = "each 512 bytes are encrypted for themselves, with an IV of their own: 4 KiB \
                    take longer than in one sector of 4096 bytes";
        let reencrypt = format!("cryptsetup reencrypt --sector-size 4096 {path}");
        let mend = match self.is_luks1() {
            true => format!(
                "a backup, then: cryptsetup convert --type luks2 {path} && {reencrypt} (if the \
                 file system in it has blocks of 4096 bytes)"
            ),
            false => format!(
                "a backup, then: {reencrypt} (if the file system in it has blocks of 4096 bytes)"
            ),
        };
        Some(self.finding(Grade::Slow, seen, mend))
    }

    fn ciphers(&self) -> Vec<Finding> {
        let ciphers = self.segments().into_iter().filter_map(|segment| segment["cipher"].as_str());
        ciphers.filter_map(|cipher| self.cipher(cipher)).collect()
    }

    fn cipher(&self, cipher: &str) -> Option<Finding> {
        let weak = match () {
            () if cipher.contains("cipher_null") => Some("encrypts nothing"),
            () if cipher.contains("-ecb") => Some("shows which sectors are equal"),
            () if cipher.contains("-cbc-plain") => {
                Some("has IVs that can be foretold: a file that was made for it shows in it")
            }
            () => None,
        };
        let is_slow = SLOW_CIPHERS.iter().any(|slow| cipher.starts_with(slow));
        let (grade, what) = match weak {
            Some(what) => (Grade::Risky, what),
            None if is_slow => (Grade::Slow, "has no CPU instructions: AES is many times as fast"),
            None => return None,
        };
        let path = quoted(self.path);
        let mend = format!(
            "a backup, then: cryptsetup reencrypt --cipher aes-xts-plain64 --key-size 512 {path}"
        );
        Some(self.finding(grade, format!("{cipher} {what}"), mend))
    }

    fn keyslots(&self) -> Vec<Finding> {
        let keyslots = self.info["keyslots"].as_object();
        let Some(keyslots) = keyslots.filter(|keyslots| !keyslots.is_empty()) else {
            return vec![self.finding(
                Grade::Risky,
                "no keyslot is left: no passphrase opens it",
                "cryptsetup luksHeaderRestore, with a backup of the header",
            )];
        };
        keyslots.iter().filter_map(|(number, slot)| self.keyslot(number, &slot["kdf"])).collect()
    }

    fn keyslot(&self, number: &str, kdf: &Value) -> Option<Finding> {
        let path = quoted(self.path);
        let convert = format!("cryptsetup luksConvertKey --key-slot {number}");
        if let Some(memory_kib) = kdf["memory_kib"].as_u64() {
            let needed_bytes = memory_kib.saturating_mul(1024);
            let fits_kib = self.memory_bytes / 2048;
            return (needed_bytes > self.memory_bytes).then(|| {
                let (needed, has) = (human_size(needed_bytes), human_size(self.memory_bytes));
                self.finding(
                    Grade::Risky,
                    format!(
                        "keyslot {number} needs {needed} of memory, and {has} may be used here"
                    ),
                    format!("where there is more: {convert} --pbkdf-memory {fits_kib} {path}"),
                )
            });
        }
        let iterations = kdf["iterations"].as_u64()?;
        let seen = format!(
            "keyslot {number} has {iterations} iterations of PBKDF2: passphrases can be tried fast"
        );
        let mend = match self.is_luks1() {
            true => format!("cryptsetup luksChangeKey --key-slot {number} {path}"),
            false => format!("{convert} --pbkdf argon2id {path}"),
        };
        (iterations < ITERATIONS_MIN).then(|| self.finding(Grade::Risky, seen, mend))
    }

    fn discards(&self) -> Option<Finding> {
        let flags = self.info["flags"].as_array();
        let allowed = flags.is_some_and(|flags| flags.iter().any(|flag| flag == "allow-discards"));
        (!allowed).then(|| {
            self.finding(
                Grade::Note,
                "TRIM is not passed down: what a file system frees stays taken below, and an SSD \
                 becomes slower",
                "blockyard serve --allow-discards, if it may be seen which parts are free",
            )
        })
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

    fn of(info: &Value, memory_bytes: u64) -> Vec<(Grade, String, String)> {
        let findings = findings("my disk.img".as_ref(), info, memory_bytes, true);
        findings.into_iter().map(|one| (one.grade, one.seen, one.mend)).collect()
    }

    #[test]
    fn good_header_has_nothing_to_say() {
        let info = luks2("aes-xts-plain64", 4096, &argon2(), &json!(["allow-discards"]));
        assert_eq!(of(&info, 1 << 30), []);
    }

    #[test]
    fn each_thing_that_is_wrong_has_its_command() {
        let (plenty, none) = (1 << 40, json!([]));
        let weak = json!({"type": "pbkdf2", "hash": "sha1", "iterations": 4000});
        let allowed = json!(["allow-discards"]);
        for (info, memory_bytes, grade, seen, mend) in [
            (
                luks2("aes-xts-plain64", 512, &argon2(), &allowed),
                plenty,
                Grade::Slow,
                "512 bytes",
                "--sector-size 4096 'my disk.img'",
            ),
            (
                luks2("aes-xts-plain64", 4096, &argon2(), &allowed),
                512 << 20,
                Grade::Risky,
                "keyslot 3 needs 1 GiB of memory, and 512 MiB",
                "--key-slot 3 --pbkdf-memory 262144 ",
            ),
            (
                luks2("aes-xts-plain64", 4096, &weak, &allowed),
                plenty,
                Grade::Risky,
                "4000 iterations",
                "--pbkdf argon2id",
            ),
            (
                luks2("aes-xts-plain64", 4096, &argon2(), &none),
                plenty,
                Grade::Note,
                "TRIM",
                "--allow-discards",
            ),
            (
                luks2("serpent-xts-plain64", 4096, &argon2(), &allowed),
                plenty,
                Grade::Slow,
                "no CPU instructions",
                "aes-xts-plain64",
            ),
            (
                luks2("aes-cbc-plain", 4096, &argon2(), &allowed),
                plenty,
                Grade::Risky,
                "foretold",
                "aes-xts-plain64",
            ),
        ] {
            let findings = of(&info, memory_bytes);
            assert_eq!(findings.len(), 1, "{findings:?}");
            assert_eq!(findings[0].0, grade);
            assert!(findings[0].1.contains(seen), "{findings:?}");
            assert!(findings[0].2.contains(mend), "{findings:?}");
        }
    }

    #[test]
    fn luks1_is_converted_first_and_a_header_without_keyslots_is_lost() {
        let info = json!({
            "type": "luks1", "cipher": "aes-xts-plain64", "sector_size_bytes": 512, "keyslots": {},
        });
        let findings = of(&info, 1 << 30);
        assert!(findings[0].2.contains("convert --type luks2"), "{findings:?}");
        assert!(findings[1].1.contains("no keyslot"), "{findings:?}");
    }
}
