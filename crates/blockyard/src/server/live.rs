//! A running server whose exports come and go.

use std::path::Path;
use std::sync::{Arc, Weak};

use blockyard_engine::throttle::Limits;
use blockyard_host::server::{Exchange, Outcome, Remote};
use blockyard_host::throttle::{Buckets, SharedThrottle};

use super::{Door, Export, Limited, Server, position, released};
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
    /// Changes the exports to those of `order`, in this order; the first is the default export. A
    /// name that no export has is that of a closed one.
    /// `change` has the new ones, with their sockets of virtual machines, and may have limits for
    /// any, and certificates for new connections. Its other sockets and options must be unset.
    ///
    /// Returns when new clients see the change. Exports that stay are not touched. The next change
    /// need not wait for [`Leaving::wait`].
    ///
    /// # Errors
    /// A name is invalid or used twice, or a socket cannot be created; nothing is changed
    /// then. Or the server has ended.
    pub fn change(&self, order: &[String], change: Server) -> Result<Leaving, Error> {
        let devices = self.devices.upgrade().ok_or_else(ended)?;
        let before = devices.named();
        let Server { exports, limits, doors, in_use, tls, .. } = change;
        // Those without a volume are closed.
        let named = |name: &String| -> Option<Named> {
            let added = exports.iter().find(|export| export.name == *name);
            let unlimited = || Buckets::new(Limits::default()).into();
            let added = added.map(|Export { name, volume, .. }| {
                (name.clone(), Arc::clone(volume), Arc::new(SharedThrottle::new(unlimited())))
            });
            added.or_else(|| before.iter().find(|(known, ..)| known == name).cloned())
        };
        let after: Vec<Option<Named>> = order.iter().map(named).collect();
        let throttle = |place: usize| after[place].as_ref().map(|(.., throttle)| throttle);
        let limited = Self::limited(order, &limits)?;
        // New exports have their limits before their first client.
        let is_new = |name: &str| exports.iter().any(|export| export.name == name);
        let (new, kept): (Vec<_>, Vec<_>) =
            limited.into_iter().partition(|(place, _)| is_new(&order[*place]));
        let use_buckets = |(place, buckets): (usize, Arc<Buckets>)| {
            throttle(place).into_iter().for_each(|of| of.use_buckets(Arc::clone(&buckets)));
        };
        new.into_iter().for_each(use_buckets);
        let disks = doors.into_iter().map(|door| match door {
            Door::VhostUser(path, name, options) => Ok((path, name, options)),
            _ => Err(Error::options(Path::new(SERVER), "a running server takes no other sockets")),
        });
        let disks = disks.collect::<Result<_, _>>()?;
        let added = exports.into_iter().map(|export| {
            let throttle = throttle(position(order, &export.name, "order")?).cloned();
            Ok(export.served(&throttle.expect("it was added"), self.has_throttles))
        });
        let added = added.collect::<Result<_, Error>>()?;
        let open: Vec<Named> = after.iter().flatten().cloned().collect();
        let on_change = {
            let devices = Weak::clone(&self.devices);
            let order = order.to_vec();
            move |names: Vec<String>| {
                let Some(devices) = devices.upgrade() else { return released(Vec::new()) };
                // The server may have closed one that had no client meanwhile.
                let open: Vec<Named> =
                    open.into_iter().filter(|(name, ..)| names.contains(name)).collect();
                devices.list(order);
                released(devices.replace(&open, in_use))
            }
        };
        let on_change = Box::new(on_change);
        let exchange = Exchange { order: order.to_vec(), added, disks, tls, on_change };
        // The volume of a removed export is closed at the end of its last user.
        drop(before);
        let outcome = self.remote.exchange(exchange).ok_or_else(ended)??;
        kept.into_iter().for_each(use_buckets);
        after.iter().flatten().for_each(|(_, volume, _)| volume.host.limits_changed());
        after.iter().flatten().for_each(|(name, volume, _)| volume.follow_growth(name));
        Ok(Leaving(outcome))
    }

    /// Refuses the clients that ask for closed exports of these names, because their volume does
    /// not open. A later client asks for it anew.
    pub fn refuse(&self, names: &[String]) {
        self.remote.refuse(names.to_vec());
    }

    /// Closes the volume of an open export, with all its names, as [`Live::change`] closes a
    /// removed one, and waits for its end. The names stay in the list, and the next client asks for
    /// a closed export.
    ///
    /// Returns whether it was open.
    ///
    /// # Errors
    /// The volume cannot be flushed: acknowledged writes may be lost.
    pub fn close(&self, name: &str) -> Result<bool, Error> {
        let Some(outcome) = self.remote.close(name.to_owned()) else { return Ok(false) };
        outcome?.wait().ok_or_else(ended)??;
        Ok(true)
    }

    /// The names of the open exports, in their order.
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

    /// Lets clients of the control socket close an export ([`Live::close`]). The function gets its
    /// name; its error is the refusal.
    pub fn on_forget(&self, forget: impl Fn(&str) -> Result<(), String> + Send + Sync + 'static) {
        if let Some(devices) = self.devices.upgrade() {
            devices.on_forget(Box::new(forget));
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

/// The end of the exports that [`Live::change`] has removed.
#[must_use = "errors of the last flushes are its result"]
pub struct Leaving(Outcome);

impl Leaving {
    /// Waits until removed exports have answered the requests that they have received, and are
    /// flushed: errors of their flushes are the result. Their volumes are closed, unless the
    /// program uses them. A client that reads no replies delays it by at most 20 seconds, and a
    /// disk that does not answer by more.
    ///
    /// # Errors
    /// The server has ended.
    pub fn wait(self) -> Result<Vec<Error>, Error> {
        Ok(self.0.wait().ok_or_else(ended)?.err().map(Error::from).into_iter().collect())
    }
}

const SERVER: &str = "server";

fn ended() -> Error {
    Error::options(Path::new(SERVER), "the server has ended")
}
