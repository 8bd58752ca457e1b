//! The lower side of a volume: the devices, ciphers and logs that SQEs name by number.

mod cipher;
mod device;

pub(crate) use cipher::KeyedCipher;
pub(crate) use device::Device;

use blockyard_engine::sq::{CipherId, DevId, LogId};

use crate::device_thread::DeviceThread;
use crate::write_log::WriteLog;

/// Devices, ciphers and logs, each in the order of their numbers.
#[derive(Default)]
pub(crate) struct Backend {
    pub(crate) devices: Vec<Device>,
    pub(crate) ciphers: Vec<KeyedCipher>,
    pub(crate) logs: Vec<WriteLog>,
}

impl Backend {
    #[inline]
    pub(crate) fn device(&self, dev: DevId) -> &Device {
        &self.devices[usize::from(dev.0)]
    }

    #[inline]
    pub(crate) fn cipher(&self, id: CipherId) -> &KeyedCipher {
        &self.ciphers[usize::from(id.0)]
    }

    #[inline]
    pub(crate) fn log(&self, id: LogId) -> &WriteLog {
        &self.logs[usize::from(id.0)]
    }

    /// The threads of the devices that have one.
    pub(crate) fn device_threads(&self) -> impl Iterator<Item = &DeviceThread> {
        self.devices.iter().filter_map(Device::thread)
    }
}
