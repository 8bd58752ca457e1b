//! A running server whose exports come and go.

use std::path::Path;
use std::sync::{Arc, Weak};

use blockyard_engine::throttle::Limits;
use blockyard_host::server::{Exchange, Remote};
use blockyard_host::throttle::{Buckets, SharedThrottle};

use super::{Door, Export, Limited, Server, position};
use crate::Error;
use crate::control::{Devices, Named, Reloaded};

/// A running server, for the thread that changes its exports ([`Listening::live`]).
///
/// [`Listening::live`]: super::Listening::live
#[derive(Clone)]
pub struct Live {
    pub(super) remote: Remote,
    /// Not kept beyond the server.
    pub(super) devices: Weak<Devices>,
    pub(super) has_throttles: bool,
}

impl Live {
    /// Changes the exports to those of `order`, in this order; the first is the default export.
    /// `change` has the new ones, with their sockets of virtual machines, and may have limits for
    /// any, and certificates for new connections. Its other sockets and options must be unset.
    ///
    /// Returns when removed exports have answered the requests that they have received, and are
    /// flushed: errors of their flushes are the result. Their volumes are closed, unless the
    /// program uses them. A client that reads no replies delays it by at most 20 seconds. Exports
    /// that stay are not touched.
    ///
    /// # Errors
    /// A name is unknown, invalid or used twice, or a socket cannot be created; nothing is changed
    /// then. Or the server has ended.
    pub fn change(&self, order: &[String], change: Server) -> Result<Vec<Error>, Error> {
        let devices = self.devices.upgrade().ok_or_else(ended)?;
        let before = devices.named();
        let Server { exports, limits, doors, in_use, tls, .. } = change;
        let named = |name: &String| -> Result<Named, Error> {
            let added = exports.iter().find(|export| export.name == *name);
            let unlimited = || Buckets::new(Limits::default()).into();
            let added = added.map(|Export { name, volume, .. }| {
                (name.clone(), Arc::clone(volume), Arc::new(SharedThrottle::new(unlimited())))
            });
            let known = || before.iter().find(|(known, ..)| known == name).cloned();
            let unknown =
                || Error::options(Path::new(SERVER), format!("there is no export {name:?}"));
            added.or_else(known).ok_or_else(unknown)
        };
        let after = order.iter().map(named).collect::<Result<Vec<_>, _>>()?;
        let limited = Self::limited(order, &limits)?;
        // New exports have their limits before their first client.
        let is_new = |name: &str| exports.iter().any(|export| export.name == name);
        let (new, kept): (Vec<_>, Vec<_>) =
            limited.into_iter().partition(|(place, _)| is_new(&order[*place]));
        new.into_iter().for_each(|(place, buckets)| after[place].2.use_buckets(buckets));
        let disks = doors.into_iter().map(|door| match door {
            Door::VhostUser(path, name, options) => Ok((path, name, options)),
            _ => Err(Error::options(Path::new(SERVER), "a running server takes no other sockets")),
        });
        let disks = disks.collect::<Result<_, _>>()?;
        let added = exports.into_iter().map(|export| {
            let place = position(order, &export.name, "order")?;
            Ok(export.served(&after[place].2, self.has_throttles))
        });
        let added = added.collect::<Result<_, Error>>()?;
        let exchange = Exchange { order: order.to_vec(), added, disks, tls };
        let outcome = self.remote.exchange(exchange).ok_or_else(ended)??;
        kept.into_iter().for_each(|(place, buckets)| after[place].2.use_buckets(buckets));
        after.iter().for_each(|(_, volume, _)| volume.host.limits_changed());
        after.iter().for_each(|(name, volume, _)| volume.follow_growth(name));
        devices.replace(&after, in_use);
        // Removed volumes are closed here, unless the program or an answer of the control socket
        // still uses one.
        drop(before);
        Ok(outcome.wait().ok_or_else(ended)?.err().map(Error::from).into_iter().collect())
    }

    /// The names of all exports, in their order.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let devices = self.devices.upgrade();
        let named = devices.map(|devices| devices.named()).unwrap_or_default();
        named.into_iter().map(|(name, ..)| name).collect()
    }

    /// Lets clients of the control socket ask for a reload. The function runs on the thread of such
    /// a client; its error is the refusal.
    pub fn on_reload(&self, reload: impl Fn() -> Result<Reloaded, String> + Send + Sync + 'static) {
        if let Some(devices) = self.devices.upgrade() {
            devices.on_reload(Box::new(reload));
        }
    }

    /// Buckets for exports, by their place in the order.
    fn limited(order: &[String], limits: &[Limited]) -> Result<Vec<(usize, Arc<Buckets>)>, Error> {
        let mut places = Vec::new();
        for limited in limits {
            let buckets = limited.buckets();
            for name in &limited.exports {
                places.push((position(order, name, "limit")?, Arc::clone(&buckets)));
            }
        }
        Ok(places)
    }
}

const SERVER: &str = "server";

fn ended() -> Error {
    Error::options(Path::new(SERVER), "the server has ended")
}
