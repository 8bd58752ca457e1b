//! Objects that a TPM 2.0 has sealed for systemd, by the programs of tpm2-tools.
//!
//! As in systemd (`src/shared/tpm2-util.c`), the parent is a primary key of the owner hierarchy, or
//! the storage root key; the policy is `PolicyPCR`; and the passphrase is the base64 text of the
//! unsealed bytes. The files between the programs hold nothing secret: an object that only this TPM
//! can load. Transient objects are flushed after each program, because a TPM without a resource
//! manager has room for three.

use std::fs;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use blockyard_crypt::luks2::{PrimaryKey, Tpm2Token};
use blockyard_crypt::secret::SecretBytes;

use super::run;

/// The passphrase of the token.
pub(super) fn unsealed(token: &Tpm2Token) -> Result<SecretBytes, String> {
    let folder = tempfile::Builder::new().prefix("blockyard-tpm2-").tempdir().map_err(|error| {
        format!("cannot create a folder for the programs of tpm2-tools: {error}")
    })?;
    let secret = unsealed_in(folder.path(), token)?;
    let mut text = SecretBytes::zeroed(secret.len().div_ceil(3) * 4);
    let len = STANDARD.encode_slice(secret.as_slice(), text.as_mut_slice());
    debug_assert_eq!(len, Ok(text.len()));
    Ok(text)
}

fn unsealed_in(folder: &Path, token: &Tpm2Token) -> Result<SecretBytes, String> {
    let path = |name: &str| folder.join(name).display().to_string();
    let [public, private] = [path("public"), path("private")];
    for (path, bytes) in [(&public, &token.public), (&private, &token.private)] {
        fs::write(path, bytes).map_err(|error| format!("{path}: {error}"))?;
    }
    let parent = parent(token.primary, path("primary"))?;
    let object = path("object");
    run("tpm2_load", &["-Q", "-C", &parent, "-u", &public, "-r", &private, "-c", &object], &[])?;
    flush_objects();
    let session = path("session");
    run("tpm2_startauthsession", &["-Q", "--policy-session", "-S", &session], &[])?;
    let secret = unsealed_with(token, &object, &session);
    // The TPM has few sessions too.
    let _ = run("tpm2_flushcontext", &[&session], &[]);
    flush_objects();
    secret
}

fn unsealed_with(token: &Tpm2Token, object: &str, session: &str) -> Result<SecretBytes, String> {
    if !token.pcrs.is_empty() {
        let pcrs: Vec<String> = token.pcrs.iter().map(u32::to_string).collect();
        let pcrs = format!("{}:{}", token.pcr_bank, pcrs.join(","));
        run("tpm2_policypcr", &["-Q", "-S", session, "-l", &pcrs], &[])?;
    }
    run("tpm2_unseal", &["-c", object, "-p", &format!("session:{session}")], &[])
}

/// The parent of the object: a handle, or a file with a new primary key.
fn parent(primary: PrimaryKey, file: String) -> Result<String, String> {
    let algorithm = match primary {
        PrimaryKey::Persistent(handle) => return Ok(format!("{handle:#x}")),
        PrimaryKey::Ecc => "ecc",
        PrimaryKey::Rsa => "rsa2048",
    };
    let arguments = ["-Q", "-C", "o", "-g", "sha256", "-G", algorithm, "-c", &file];
    run("tpm2_createprimary", &arguments, &[])?;
    flush_objects();
    Ok(file)
}

fn flush_objects() {
    // A resource manager has nothing to flush.
    let _ = run("tpm2_flushcontext", &["-t"], &[]);
}
