//! Access to the sockets of the server, and a socket of its own for one command.

use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use blockyard::SocketAccess;
use blockyard_host::process::{group_id, user_id};
use clap::Args;

use crate::failure::Failure;

/// Mode of the sockets of a group, if no mode is given.
const GROUP_MODE: u32 = 0o660;
/// Folders of killed servers that may have our process ID.
const ATTEMPTS: u32 = 1000;

/// Access to the sockets, as options or keys of the configuration name it.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AccessArgs {
    /// Permissions of the sockets of --socket, --vhost-user and --control, in octal [default: 600,
    /// or 660 with --socket-group]
    ///
    /// A user with write permission on such a socket reads and writes the plaintext.
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    pub(crate) socket_mode: Option<u32>,

    /// Give these sockets to a user, by name or number
    #[arg(long, value_name = "USER")]
    pub(crate) socket_owner: Option<String>,

    /// Give these sockets to a group, by name or number
    #[arg(long, value_name = "GROUP")]
    pub(crate) socket_group: Option<String>,
}

impl AccessArgs {
    /// These, and others where they say nothing.
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            socket_mode: self.socket_mode.or(other.socket_mode),
            socket_owner: self.socket_owner.or(other.socket_owner),
            socket_group: self.socket_group.or(other.socket_group),
        }
    }

    /// The numbers of the user and the group.
    pub(crate) fn access(&self) -> Result<SocketAccess, Failure> {
        let owner = self.socket_owner.as_deref();
        let owner =
            owner.map(|name| number("--socket-owner", "user", name, user_id)).transpose()?;
        let group = self.socket_group.as_deref();
        let group =
            group.map(|name| number("--socket-group", "group", name, group_id)).transpose()?;
        let default = if group.is_some() { GROUP_MODE } else { SocketAccess::default().mode };
        Ok(SocketAccess { mode: self.socket_mode.unwrap_or(default), owner, group })
    }
}

fn number(
    option: &str,
    what: &str,
    name: &str,
    find: fn(&str) -> Option<u32>,
) -> Result<u32, Failure> {
    name.parse().ok().or_else(|| find(name)).ok_or_else(|| {
        Failure::failed(format!(
            "{option} {name}: there is no such {what}; `getent {}` lists them",
            if what == "user" { "passwd" } else { "group" }
        ))
    })
}

/// A mode in octal.
pub(crate) fn parse_mode(text: &str) -> Result<u32, String> {
    let is_octal = !text.is_empty() && text.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| is_octal && *mode <= 0o777);
    mode.ok_or_else(|| "a mode has octal digits up to 777, as in 660".into())
}

/// A folder for one socket, which goes with this value.
pub(super) struct PrivateFolder(PathBuf);

impl PrivateFolder {
    /// Makes a folder that only its owner may use.
    pub(super) fn make() -> Result<Self, Failure> {
        let place = place();
        for attempt in 0..ATTEMPTS {
            let path = place.join(format!("blockyard-{}-{attempt}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => {
                    return Err(Failure::failed(format!(
                        "--socket -: cannot make the folder {}: {error}; set XDG_RUNTIME_DIR to a \
                         folder of your own",
                        path.display()
                    )));
                }
            }
        }
        Err(Failure::failed(format!(
            "--socket -: {} has too many folders of killed servers; remove its blockyard-* folders",
            place.display()
        )))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// The socket in it.
    pub(super) fn socket(&self) -> PathBuf {
        self.0.join("socket")
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// The runtime folder of the user, or else that of temporary files.
fn place() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    runtime.filter(|path| path.is_absolute()).unwrap_or_else(std::env::temp_dir)
}

/// A private socket has the access of its folder.
pub(super) fn check_private(path: Option<&Path>, access: &AccessArgs) -> Result<(), Failure> {
    if path.is_some_and(is_private) && *access != AccessArgs::default() {
        return Err(Failure::failed(
            "--socket -: other users do not reach a private socket; name a path, or remove \
             --socket-mode, --socket-owner and --socket-group",
        ));
    }
    Ok(())
}

/// Whether a path asks for a private socket.
pub(crate) fn is_private(path: &Path) -> bool {
    path.as_os_str() == "-"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_is_octal_and_has_no_special_bits() {
        assert_eq!((parse_mode("660"), parse_mode("0600")), (Ok(0o660), Ok(0o600)));
        for text in ["", "888", "1777", "+66", "u=rw", "0o660"] {
            assert!(parse_mode(text).is_err(), "{text}");
        }
    }

    #[test]
    fn socket_of_a_group_is_for_the_group() {
        let group = |mode| AccessArgs {
            socket_mode: mode,
            socket_owner: None,
            socket_group: Some("4711".into()),
        };
        let access = |mode| group(mode).access().unwrap();
        assert_eq!(access(None), SocketAccess { mode: 0o660, owner: None, group: Some(4711) });
        assert_eq!(access(Some(0o600)).mode, 0o600);
        let root = AccessArgs { socket_owner: Some("root".into()), ..AccessArgs::default() };
        assert_eq!(root.access().unwrap().owner, Some(0));
    }
}
