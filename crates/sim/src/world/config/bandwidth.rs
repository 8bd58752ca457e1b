//! Limits of memory: the rate of each socket, and of the links between sockets.

/// Rates of memory, and what moves through it.
#[derive(Clone, Copy, Debug)]
pub struct BandwidthConfig {
    /// Bytes a second of the memory of a socket.
    pub memory_bytes_per_s: u64,
    /// Bytes a second of the link between two sockets, in both directions together; `None`: no
    /// limit.
    pub link_bytes_per_s: Option<u64>,
    /// Bytes in memory for a hundred bytes through a cipher: each is read and written.
    pub cipher_percent: u32,
    /// Bytes in memory for a hundred copied bytes: each is read and written.
    pub copy_percent: u32,
    /// Bytes in memory for a hundred bytes of a device's DMA. Less than a hundred if the device
    /// reaches the cache (Intel's Data Direct I/O).
    pub dma_percent: u32,
    /// Socket to which the device is attached.
    pub device_socket: u16,
}
