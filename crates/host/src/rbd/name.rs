//! Names of images: `rbd:POOL[/NAMESPACE]/IMAGE[@SNAP][?NAME=VALUE[&NAME=VALUE]...]`.
//!
//! | setting | meaning |
//! |---|---|
//! | `conf=FILE` | configuration of the cluster; default: `CEPH_CONF`, `/etc/ceph/ceph.conf`, … |
//! | `id=NAME` | user of the cluster, without `client.`; default `admin` |
//! | `reconnect-delay=SECONDS` | time limit of a request while the cluster is away; default 60 |
//! | `break-lock=true` | fence another owner of the image's lock, and take the lock |
//!
//! A `%` and two hexadecimal digits are a byte, for names with `/`, `@`, `?` or `&`.

use std::fmt;
use std::time::Duration;

use crate::nbd::uri::decode;

/// Start of every name.
const SCHEME: &str = "rbd:";
/// Time limit of a request while the cluster is away, as for NBD servers. Ours.
const RECONNECT_DELAY: Duration = Duration::from_secs(60);
/// Longest accepted delay: a day.
const RECONNECT_DELAY_MAX_S: u64 = 86_400;

/// The name of an image, and settings of its connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RbdName {
    /// Pool of the image.
    pub pool: String,
    /// Namespace in the pool; empty: the default one.
    pub namespace: String,
    /// The image.
    pub image: String,
    /// A snapshot of it.
    pub snapshot: Option<String>,
    /// File with the cluster's configuration; `None`: librados looks for it.
    pub conf: Option<String>,
    /// User of the cluster.
    pub id: String,
    /// Time limit of a request.
    pub reconnect_delay: Duration,
    /// Fence another owner of the lock.
    pub breaks_lock: bool,
}

impl RbdName {
    /// Whether a text is the name of an image, not of a file.
    #[must_use]
    pub fn is_rbd(text: &str) -> bool {
        text.starts_with(SCHEME)
    }

    /// Parses a name.
    ///
    /// # Errors
    /// The problem, with the form of a name.
    pub fn parse(text: &str) -> Result<Self, String> {
        let rest = text.strip_prefix(SCHEME).ok_or_else(|| form(text, "it is no name"))?;
        let (path, settings) = rest.split_once('?').unwrap_or((rest, ""));
        let (path, snapshot) = match path.split_once('@') {
            Some((path, snapshot)) => (path, Some(snapshot)),
            None => (path, None),
        };
        let parts: Vec<&str> = path.split('/').collect();
        let (pool, namespace, image) = match parts[..] {
            [pool, image] => (pool, "", image),
            [pool, namespace, image] if !namespace.is_empty() => (pool, namespace, image),
            _ => return Err(form(text, "it has no pool and image")),
        };
        let word = |part: &str, what: &str| {
            let decoded = decode(part).map_err(|problem| form(text, &problem))?;
            let is_bad = decoded.is_empty() || decoded.contains('\0');
            if is_bad { Err(form(text, &format!("its {what} is empty"))) } else { Ok(decoded) }
        };
        let mut name = Self {
            pool: word(pool, "pool")?,
            namespace: if namespace.is_empty() { String::new() } else { word(namespace, "")? },
            image: word(image, "image")?,
            snapshot: snapshot.map(|snapshot| word(snapshot, "snapshot")).transpose()?,
            conf: None,
            id: "admin".into(),
            reconnect_delay: RECONNECT_DELAY,
            breaks_lock: false,
        };
        for setting in settings.split('&').filter(|setting| !setting.is_empty()) {
            let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
            let value = word(value, &format!("setting {key}"))?;
            name.set(key, value).map_err(|problem| form(text, &problem))?;
        }
        Ok(name)
    }

    fn set(&mut self, key: &str, value: String) -> Result<(), String> {
        match key {
            "conf" => self.conf = Some(value),
            "id" => self.id = value,
            "reconnect-delay" => {
                let seconds =
                    value.parse().ok().filter(|s| (1..=RECONNECT_DELAY_MAX_S).contains(s));
                let seconds = seconds.ok_or_else(|| {
                    format!("reconnect-delay is a number of seconds, 1 to {RECONNECT_DELAY_MAX_S}")
                })?;
                self.reconnect_delay = Duration::from_secs(seconds);
            }
            "break-lock" => {
                self.breaks_lock = value.parse().map_err(|_| "break-lock is true or false")?;
            }
            other => {
                return Err(format!(
                    "{other:?} is unknown; its settings are conf, id, reconnect-delay and \
                     break-lock"
                ));
            }
        }
        Ok(())
    }
}

fn form(text: &str, problem: &str) -> String {
    format!("{text}: {problem}; an image is named as in rbd:POOL/IMAGE or rbd:POOL/IMAGE@SNAP")
}

impl fmt::Display for RbdName {
    /// The image without its settings, for messages.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pool, namespace, image, snapshot, .. } = self;
        let slash = if namespace.is_empty() { "" } else { "/" };
        write!(f, "{SCHEME}{pool}{slash}{namespace}/{image}")?;
        snapshot.iter().try_for_each(|snapshot| write!(f, "@{snapshot}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_a_pool_an_image_and_settings() {
        let name = RbdName::parse("rbd:pool/disk").unwrap();
        assert_eq!((name.pool.as_str(), name.image.as_str()), ("pool", "disk"));
        assert_eq!((name.id.as_str(), name.conf, name.snapshot), ("admin", None, None));
        let text = "rbd:p/n/a%2Fb@s?conf=/x/ceph.conf&id=tenant&reconnect-delay=5&break-lock=true";
        let name = RbdName::parse(text).unwrap();
        assert_eq!((name.namespace.as_str(), name.image.as_str()), ("n", "a/b"));
        assert_eq!(name.snapshot.as_deref(), Some("s"));
        assert_eq!((name.conf.as_deref(), name.id.as_str()), (Some("/x/ceph.conf"), "tenant"));
        assert!(name.reconnect_delay == Duration::from_secs(5) && name.breaks_lock);
        assert_eq!(name.to_string(), "rbd:p/n/a/b@s");
    }

    #[test]
    fn wrong_names_are_refused_with_their_form() {
        for text in [
            "rbd:",
            "rbd:disk",
            "rbd:/disk",
            "rbd:p/",
            "rbd:p/n/i/x",
            "rbd:p//i",
            "rbd:p/i@",
            "rbd:p/%0",
            "rbd:p/%00",
            "rbd:p/i?x=1",
            "rbd:p/i?id=",
            "rbd:p/i?reconnect-delay=0",
            "rbd:p/i?reconnect-delay=99999",
            "rbd:p/i?break-lock=yes",
        ] {
            let problem = RbdName::parse(text).unwrap_err();
            assert!(problem.contains("rbd:POOL/IMAGE"), "{text}: {problem}");
        }
    }
}
