//! Protocols for clients and remote servers, as sans-IO sessions: bytes in, events and bytes out.
//!
//! A session owns no socket, no thread, no clock and no payload buffer. A world passes received
//! bytes to it, sends the bytes that the session wrote, and executes the requests. The crate is
//! `no_std`, so it cannot open a socket.
//!
//! [`nbd`] is the server side of NBD, [`nbd::client`] its client side. [`vhost_user`] is the back
//! end of a virtual machine's disk, [`virtio_queue`] and [`virtio_blk`] are the machine's requests.
//! [`ublk`] is the kernel's interface to disks that programs serve. [`http`] serves metrics to a
//! scraper.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod http;
pub mod nbd;
pub mod ublk;
pub mod vhost_user;
pub mod virtio_blk;
pub mod virtio_queue;
