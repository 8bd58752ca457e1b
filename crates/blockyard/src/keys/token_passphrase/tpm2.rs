//! Objects that a TPM 2.0 has sealed for systemd, by the programs of tpm2-tools.
//!
//! As in systemd (`src/shared/tpm2-util.c`), the parent is a primary key of the owner hierarchy, or
//! the storage root key; the policy is `PolicyPCR`; and the passphrase is the base64 text of the
//! unsealed bytes. The files between the programs hold nothing secret: an object that only this TPM
//! can load. A TPM without a resource manager has room for three transient objects, and the
//! programs leave theirs. So those that were not there before are flushed after each program, and
//! no others.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use blockyard_crypt::luks2::{PrimaryKey, Tpm2Token};
use blockyard_crypt::secret::SecretBytes;

use super::run;

/// Time in which objects and the session are removed from the TPM, even after the deadline.
const CLEANUP_TIME_LIMIT: Duration = Duration::from_secs(5);

/// The passphrase of the token.
pub(super) fn unsealed(token: &Tpm2Token, deadline: Instant) -> Result<SecretBytes, String> {
    let mut folder = tempfile::Builder::new();
    folder.prefix("blockyard-tpm2-").permissions(fs::Permissions::from_mode(0o700));
    let folder = folder.tempdir().map_err(|error| {
        format!("cannot create a folder for the programs of tpm2-tools: {error}")
    })?;
    let others = transient_objects(deadline)?;
    let tpm = Tpm { folder: folder.path(), deadline, others };
    let secret = tpm.unsealed(token)?;
    let mut text = SecretBytes::zeroed(secret.len().div_ceil(3) * 4);
    let len = STANDARD.encode_slice(secret.as_slice(), text.as_mut_slice());
    debug_assert_eq!(len, Ok(text.len()));
    Ok(text)
}

/// A TPM that is used by programs.
struct Tpm<'a> {
    /// Files between the programs.
    folder: &'a Path,
    deadline: Instant,
    /// Handles of transient objects of other users.
    others: BTreeSet<String>,
}

impl Tpm<'_> {
    fn unsealed(&self, token: &Tpm2Token) -> Result<SecretBytes, String> {
        let [public, private] = [self.path("public"), self.path("private")];
        for (path, bytes) in [(&public, &token.public), (&private, &token.private)] {
            fs::write(path, bytes).map_err(|error| format!("{path}: {error}"))?;
        }
        let parent = self.parent(token.primary)?;
        let object = self.path("object");
        let load = ["-Q", "-C", &parent, "-u", &public, "-r", &private, "-c", &object];
        self.run("tpm2_load", &load)?;
        let session = self.path("session");
        self.run("tpm2_startauthsession", &["-Q", "--policy-session", "-S", &session])?;
        let secret = self.unsealed_with(token, &object, &session);
        // The TPM has few sessions too.
        let _ = run("tpm2_flushcontext", &[&session], &[], cleanup_deadline());
        secret
    }

    fn unsealed_with(
        &self,
        token: &Tpm2Token,
        object: &str,
        session: &str,
    ) -> Result<SecretBytes, String> {
        if !token.pcrs.is_empty() {
            let pcrs: Vec<String> = token.pcrs.iter().map(u32::to_string).collect();
            let pcrs = format!("{}:{}", token.pcr_bank, pcrs.join(","));
            self.run("tpm2_policypcr", &["-Q", "-S", session, "-l", &pcrs])?;
        }
        self.run("tpm2_unseal", &["-c", object, "-p", &format!("session:{session}")])
    }

    /// The parent of the object: a handle, or a file with a new primary key.
    fn parent(&self, primary: PrimaryKey) -> Result<String, String> {
        let algorithm = match primary {
            PrimaryKey::Persistent(handle) => return Ok(format!("{handle:#x}")),
            PrimaryKey::Ecc => "ecc",
            PrimaryKey::Rsa => "rsa2048",
        };
        let file = self.path("primary");
        let arguments = ["-Q", "-C", "o", "-g", "sha256", "-G", algorithm, "-c", &file];
        self.run("tpm2_createprimary", &arguments)?;
        Ok(file)
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// Runs a program, and flushes the objects that it has left.
    fn run(&self, program: &str, arguments: &[&str]) -> Result<SecretBytes, String> {
        let output = run(program, arguments, &[], self.deadline);
        let deadline = cleanup_deadline();
        for object in transient_objects(deadline).unwrap_or_default().difference(&self.others) {
            let _ = run("tpm2_flushcontext", &[object], &[], deadline);
        }
        output
    }
}

fn cleanup_deadline() -> Instant {
    Instant::now() + CLEANUP_TIME_LIMIT
}

/// Handles of the transient objects in the TPM. Behind a resource manager there are none.
fn transient_objects(deadline: Instant) -> Result<BTreeSet<String>, String> {
    let list = run("tpm2_getcap", &["handles-transient"], &[], deadline)?;
    let list = String::from_utf8_lossy(list.as_slice());
    Ok(list.lines().filter_map(|line| line.strip_prefix("- ")).map(str::to_owned).collect())
}
