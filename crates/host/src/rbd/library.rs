//! `librbd`, opened at run time: the program runs without Ceph.
//!
//! The declarations are those of `rbd/librbd.h` and `rados/librados.h` of Ceph 16; later versions
//! have kept them. All functions return 0, or a negative error number, unless noted.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

/// `rados_t`, a connection to a cluster.
pub(super) type ClusterHandle = *mut c_void;
/// `rados_ioctx_t`, a pool of a connection.
pub(super) type PoolHandle = *mut c_void;
/// `rbd_image_t`.
pub(super) type ImageHandle = *mut c_void;
/// `rbd_completion_t`.
pub(super) type Completion = *mut c_void;
/// `rbd_callback_t`.
pub(super) type Callback = unsafe extern "C" fn(Completion, *mut c_void);
/// Callback of `rbd_diff_iterate2`: offset, length, whether it exists, argument.
pub(super) type DiffCallback = unsafe extern "C" fn(u64, usize, c_int, *mut c_void) -> c_int;

/// `rbd_update_callback_t`.
pub(super) type UpdateCallback = unsafe extern "C" fn(*mut c_void);

/// `RBD_LOCK_MODE_EXCLUSIVE`.
pub(super) const LOCK_EXCLUSIVE: c_int = 0;
/// `RBD_FEATURE_EXCLUSIVE_LOCK`.
pub(super) const FEATURE_EXCLUSIVE_LOCK: u64 = 1 << 2;

/// Declares functions of the library as fields, with a loader.
macro_rules! functions {
    ($(#[$doc:meta])* $table:ident {
        $($name:ident($($argument:ty),*) -> $result:ty;)*
    }) => {
        $(#[$doc])*
        pub(super) struct $table {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl $table {
            fn load(library: Handle) -> Result<Self, String> {
                Ok(Self {
                    $($name: {
                        let name = concat!(stringify!($name), "\0");
                        let name = CStr::from_bytes_with_nul(name.as_bytes());
                        let address = library.symbol(name.expect("it ends with a zero"))?;
                        // SAFETY: the library has a function of this name, whose declaration is
                        // the field's type.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) -> $result,
                            >(address)
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    /// Connections to clusters.
    Clusters {
        rados_create(*mut ClusterHandle, *const c_char) -> c_int;
        rados_conf_read_file(ClusterHandle, *const c_char) -> c_int;
        rados_conf_set(ClusterHandle, *const c_char, *const c_char) -> c_int;
        rados_connect(ClusterHandle) -> c_int;
        rados_getaddrs(ClusterHandle, *mut *mut c_char) -> c_int;
        rados_mon_command(
            ClusterHandle, *mut *const c_char, usize, *const c_char, usize,
            *mut *mut c_char, *mut usize, *mut *mut c_char, *mut usize
        ) -> c_int;
        rados_buffer_free(*mut c_char) -> ();
        rados_shutdown(ClusterHandle) -> ();
        rados_ioctx_create(ClusterHandle, *const c_char, *mut PoolHandle) -> c_int;
        rados_ioctx_set_namespace(PoolHandle, *const c_char) -> ();
        rados_ioctx_destroy(PoolHandle) -> ();
    }
}

functions! {
    /// Images.
    // 20 fields: one for each function of the library.
    Images {
        rbd_open(PoolHandle, *const c_char, *mut ImageHandle, *const c_char) -> c_int;
        rbd_open_read_only(PoolHandle, *const c_char, *mut ImageHandle, *const c_char) -> c_int;
        rbd_close(ImageHandle) -> c_int;
        rbd_get_size(ImageHandle, *mut u64) -> c_int;
        rbd_get_stripe_count(ImageHandle, *mut u64) -> c_int;
        rbd_get_features(ImageHandle, *mut u64) -> c_int;
        rbd_stat(ImageHandle, *mut ImageInfo, usize) -> c_int;
        rbd_read(ImageHandle, u64, usize, *mut c_char) -> isize;
        rbd_write(ImageHandle, u64, usize, *const c_char) -> isize;
        rbd_flush(ImageHandle) -> c_int;
        rbd_diff_iterate2(
            ImageHandle, *const c_char, u64, u64, u8, u8, DiffCallback, *mut c_void
        ) -> c_int;
        rbd_lock_acquire(ImageHandle, c_int) -> c_int;
        rbd_lock_get_owners(ImageHandle, *mut c_int, *mut *mut c_char, *mut usize) -> c_int;
        rbd_lock_get_owners_cleanup(*mut *mut c_char, usize) -> ();
        rbd_update_watch(ImageHandle, *mut u64, UpdateCallback, *mut c_void) -> c_int;
        rbd_update_unwatch(ImageHandle, u64) -> c_int;
        rbd_is_exclusive_lock_owner(ImageHandle, *mut c_int) -> c_int;
        rbd_metadata_get(ImageHandle, *const c_char, *mut c_char, *mut usize) -> c_int;
        rbd_metadata_set(ImageHandle, *const c_char, *const c_char) -> c_int;
        rbd_lock_break(ImageHandle, c_int, *const c_char) -> c_int;
    }
}

functions! {
    /// Asynchronous operations.
    Operations {
        rbd_aio_create_completion(*mut c_void, Callback, *mut Completion) -> c_int;
        rbd_aio_get_return_value(Completion) -> isize;
        rbd_aio_release(Completion) -> ();
        rbd_aio_readv(ImageHandle, *const libc::iovec, c_int, u64, Completion) -> c_int;
        rbd_aio_writev(ImageHandle, *const libc::iovec, c_int, u64, Completion) -> c_int;
        rbd_aio_discard(ImageHandle, u64, u64, Completion) -> c_int;
        rbd_aio_write_zeroes(ImageHandle, u64, usize, Completion, c_int, c_int) -> c_int;
        rbd_aio_flush(ImageHandle, Completion) -> c_int;
    }
}

/// `rbd_image_info_t`; the two last fields are obsolete.
#[repr(C)]
pub(super) struct ImageInfo {
    pub(super) size_bytes: u64,
    pub(super) object_bytes: u64,
    object_count: u64,
    order: c_int,
    block_name_prefix: [c_char; 24],
    parent_pool: i64,
    parent_name: [c_char; 96],
}

impl ImageInfo {
    pub(super) const EMPTY: Self = Self {
        size_bytes: 0,
        object_bytes: 0,
        object_count: 0,
        order: 0,
        block_name_prefix: [0; 24],
        parent_pool: 0,
        parent_name: [0; 96],
    };
}

/// The library's functions.
pub(super) struct Library {
    pub(super) clusters: Clusters,
    pub(super) images: Images,
    pub(super) operations: Operations,
}

/// An open shared object. It is never closed, because its threads may run until the end.
#[derive(Clone, Copy)]
struct Handle(*mut c_void);

impl Handle {
    fn symbol(self, name: &CStr) -> Result<*mut c_void, String> {
        // SAFETY: the handle is open, and the name ends with a zero.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        if address.is_null() {
            return Err(format!(
                "librbd.so.1 has no function {}; version 16 (pacific) of Ceph or a later one is \
                 needed",
                name.to_string_lossy()
            ));
        }
        Ok(address)
    }
}

impl Library {
    /// The library, which is opened at the first call.
    ///
    /// # Errors
    /// The system has no `librbd`, or a too old one.
    pub(super) fn get() -> Result<&'static Self, String> {
        static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
        LIBRARY.get_or_init(Self::load).as_ref().map_err(Clone::clone)
    }

    fn load() -> Result<Self, String> {
        // SAFETY: the name ends with a zero; the library's initialisers are those of Ceph.
        let handle =
            unsafe { libc::dlopen(c"librbd.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            let remedy = if cfg!(target_feature = "crt-static") {
                "this static program cannot load Ceph's library: use the one of a package"
            } else {
                "Ceph's library is missing here: install the package librbd1"
            };
            return Err(remedy.into());
        }
        let library = Handle(handle);
        Ok(Self {
            clusters: Clusters::load(library)?,
            images: Images::load(library)?,
            operations: Operations::load(library)?,
        })
    }
}
