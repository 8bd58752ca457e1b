//! The exports of a server: what clients are offered, and which volume serves them.
//!
//! A client in its handshake keeps the list that it was shown, because its options refer to places
//! in the list. The list does not keep volumes open: an export that was removed meanwhile is gone.

use std::path::Path;
use std::sync::{Arc, Weak};

use blockyard_engine::priority::Priority;
use blockyard_protocol::nbd::Export;

use crate::Error;
use crate::throttle::SharedThrottle;
use crate::volume::Volume;

/// Length of an export's name in an error.
const NAME_SHOWN_CHARS: usize = 64;

/// An export: a name and its volume. Several names may share one volume.
pub struct ServedExport {
    /// Name; the empty name is the default export.
    pub name: String,
    /// Volume.
    pub volume: Arc<Volume>,
    /// I/O priority of clients that open this name.
    pub priority: Priority,
    /// Limits of the rate of all its clients together; exports of a group share the buckets.
    pub throttle: Option<Arc<SharedThrottle>>,
}

/// The exports for new clients.
pub(super) struct Catalogue {
    /// In the order in which clients see them.
    pub(super) served: Vec<Arc<ServedExport>>,
    offer: Arc<Offer>,
    /// Clients may open several connections.
    multi_conn: bool,
}

/// The list that a client was shown.
pub(super) struct Offer {
    pub(super) exports: Arc<[Export]>,
    served: Vec<Weak<ServedExport>>,
}

impl Offer {
    /// The export at a place of the list, unless it is closed.
    pub(super) fn served(&self, place: usize) -> Option<Arc<ServedExport>> {
        self.served[place].upgrade()
    }
}

impl Catalogue {
    /// # Errors
    /// A name is invalid or used twice.
    pub(super) fn new(served: Vec<ServedExport>, multi_conn: bool) -> Result<Self, Error> {
        Self::of(served.into_iter().map(Arc::new).collect(), multi_conn)
    }

    fn of(served: Vec<Arc<ServedExport>>, multi_conn: bool) -> Result<Self, Error> {
        let mut exports: Vec<Export> = Vec::new();
        for one in &served {
            let name = &one.name;
            let export = described(one, multi_conn);
            let problem = |problem: String| Error::volume(Path::new(&shortened(name)), problem);
            export.check().map_err(|error| problem(error.to_string()))?;
            if exports.iter().any(|other| other.name == *name) {
                return Err(problem("two exports have this name; give each its own".into()));
            }
            exports.push(export);
        }
        let offer = Offer { exports: exports.into(), served: weak(&served) };
        Ok(Self { served, offer: Arc::new(offer), multi_conn })
    }

    /// The list with these exports in this order; `added` first becomes a part of it.
    ///
    /// # Errors
    /// See [`Catalogue::new`]; or a name of the order is neither served nor added.
    pub(super) fn changed(
        &self,
        order: &[String],
        added: Vec<ServedExport>,
    ) -> Result<Self, Error> {
        let mut added: Vec<_> = added.into_iter().map(Arc::new).collect();
        let mut served = Vec::with_capacity(order.len());
        for name in order {
            let is_it = |one: &Arc<ServedExport>| one.name == *name;
            let found = match added.iter().position(is_it) {
                Some(place) => added.swap_remove(place),
                None => {
                    let kept = self.served.iter().find(|one| is_it(one));
                    let missing = || Error::volume(Path::new(&shortened(name)), "is no export");
                    Arc::clone(kept.ok_or_else(missing)?)
                }
            };
            served.push(found);
        }
        Self::of(served, self.multi_conn)
    }

    /// The export of this name.
    pub(super) fn find(&self, name: &str) -> Option<&Arc<ServedExport>> {
        self.served.iter().find(|one| one.name == name)
    }

    /// Whether new clients may still open this export.
    pub(super) fn has(&self, export: &Arc<ServedExport>) -> bool {
        self.served.iter().any(|one| Arc::ptr_eq(one, export))
    }

    /// The list for a new client, with the present sizes.
    pub(super) fn offer(&mut self) -> Arc<Offer> {
        let mut both = self.offer.exports.iter().zip(&self.served);
        if !both.all(|(export, served)| export.size_bytes == served.volume.size_bytes()) {
            let exports = self.served.iter().map(|one| described(one, self.multi_conn));
            let offer = Offer { exports: exports.collect(), served: weak(&self.served) };
            self.offer = Arc::new(offer);
        }
        Arc::clone(&self.offer)
    }

    /// Each volume once, regardless of its number of names.
    pub(super) fn volumes(&self) -> Vec<Arc<Volume>> {
        distinct(&self.served)
    }
}

/// Each volume of these exports once.
pub(super) fn distinct(exports: &[Arc<ServedExport>]) -> Vec<Arc<Volume>> {
    let mut volumes: Vec<Arc<Volume>> = Vec::new();
    for ServedExport { volume, .. } in exports.iter().map(Arc::as_ref) {
        if !volumes.iter().any(|one| Arc::ptr_eq(one, volume)) {
            volumes.push(Arc::clone(volume));
        }
    }
    volumes
}

fn weak(served: &[Arc<ServedExport>]) -> Vec<Weak<ServedExport>> {
    served.iter().map(Arc::downgrade).collect()
}

/// A name for an error: the start of a long one.
fn shortened(name: &str) -> String {
    match name.char_indices().nth(NAME_SHOWN_CHARS) {
        Some((end, _)) => format!("{}...", &name[..end]),
        None => name.to_owned(),
    }
}

/// A volume's description for clients.
fn described(ServedExport { name, volume, .. }: &ServedExport, multi_conn: bool) -> Export {
    Export {
        description: volume.describe(),
        read_only: volume.read_only(),
        can_trim: volume.can_discard(),
        can_fast_zero: volume.can_fast_zero() && !volume.read_only(),
        block_min_bytes: volume.minimum_block_bytes(),
        block_preferred_bytes: volume.sector_size_bytes().max(4096),
        multi_conn,
        ..Export::new(name, volume.size_bytes())
    }
}
