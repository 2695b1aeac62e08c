//! The binary's allocator: small blocks come from one heap, large ones directly from the kernel.
//!
//! musl's own allocator calls the kernel for every allocation, which is most of what `saggar run` does outside the
//! kernel, so small blocks come from dlmalloc. It never returns memory from the middle of its heap: a single small
//! block behind the buffers of two hundred transfers would make a server hold their memory forever. So a large buffer
//! is a mapping of its own, which can grow without being copied. A few freed mappings are kept for reuse, so that a
//! transfer doesn't call the kernel for each piece; the others are unmapped when they are freed.
//!
//! It is in this crate because it needs `unsafe`.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::{copy_nonoverlapping, null_mut};
use std::sync::Mutex;

use dlmalloc::GlobalDlmalloc;
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap, munmap};

/// From this size on a block is a mapping. Buffers for pieces of files, responses or output are all at least as large.
const LARGE: usize = 8 << 10;
/// Up to this size the length of a mapping is a power of two, and it is kept for reuse. Untouched pages cost nothing.
const KEPT_LEN_MAX: usize = 256 << 10;
/// Maximum number of bytes kept.
const KEPT_BYTES_MAX: usize = 4 << 20;
/// Number of different lengths that are kept.
const LENGTHS: usize = (KEPT_LEN_MAX.trailing_zeros() - LARGE.trailing_zeros()) as usize + 1;
/// Alignment of a mapping.
const PAGE: usize = 4096;

/// The type for `#[global_allocator]`.
#[derive(Debug, Default)]
pub struct Allocator;

impl Allocator {
    /// Unmaps what is kept for reuse. For a process that has done its work and now waits: a supervisor would keep the buffers that it
    /// read files of the host into for as long as its sandbox lives.
    pub fn unmap_kept() {
        if let Ok(mut kept) = KEPT.try_lock() {
            kept.unmap_all();
        }
    }
}

/// Whether a block is a mapping. This depends only on the layout, so the answer is the same when the block is freed.
fn is_mapped(size: usize, align: usize) -> bool {
    size >= LARGE && align <= PAGE
}

fn length(size: usize) -> usize {
    if size <= KEPT_LEN_MAX { size.next_power_of_two() } else { size.next_multiple_of(PAGE) }
}

/// Freed mappings, in lists by length. The first bytes of each hold the address of the next.
struct Kept {
    first: [*mut u8; LENGTHS],
    bytes: usize,
}

// SAFETY: blocks in the lists have no owner, and the holder of the lock has exclusive access to all of them.
unsafe impl Send for Kept {}

static KEPT: Mutex<Kept> = Mutex::new(Kept { first: [null_mut(); LENGTHS], bytes: 0 });

impl Kept {
    /// The list of blocks of this length; `None` if such blocks are not kept.
    fn list(&mut self, length: usize) -> Option<&mut *mut u8> {
        let number = length.trailing_zeros().checked_sub(LARGE.trailing_zeros())? as usize;
        if length > KEPT_LEN_MAX { None } else { self.first.get_mut(number) }
    }

    fn take(&mut self, length: usize) -> Option<*mut u8> {
        let first = self.list(length)?;
        let block = *first;
        if block.is_null() {
            return None;
        }
        // SAFETY: a block in a list is a mapping of ours, page-aligned, and begins with the next one's address.
        *first = unsafe { block.cast::<*mut u8>().read() };
        self.bytes -= length;
        Some(block)
    }

    /// Returns whether the block was kept.
    fn put(&mut self, block: *mut u8, length: usize) -> bool {
        if self.bytes + length > KEPT_BYTES_MAX {
            return false;
        }
        let Some(first) = self.list(length) else { return false };
        // SAFETY: the block is a mapping of at least a page that its owner has freed.
        unsafe { block.cast::<*mut u8>().write(*first) };
        *first = block;
        self.bytes += length;
        true
    }

    fn unmap_all(&mut self) {
        for number in 0..LENGTHS {
            let length = LARGE << number;
            while let Some(block) = self.take(length) {
                // SAFETY: it is a whole mapping of `map` of this length, and nothing refers to it. If this fails it stays mapped, which
                // is harmless.
                let _ = unsafe { munmap(block.cast(), length) };
            }
        }
    }
}

// SAFETY: the layout alone decides whether a block is dlmalloc's or a mapping, and `GlobalAlloc` promises the same
// layout when it is freed. Both return exclusively owned memory of at least that size and the requested alignment: a
// mapping is page-aligned, and is used only for alignments up to that.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_mapped(layout.size(), layout.align()) {
            let length = length(layout.size());
            return kept(length).unwrap_or_else(|| map(length));
        }
        // SAFETY: the caller makes the same promises.
        unsafe { GlobalDlmalloc.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_mapped(layout.size(), layout.align()) {
            // The kernel returns zeroed pages, which cost nothing until they are touched.
            return map(length(layout.size()));
        }
        // SAFETY: the caller makes the same promises.
        unsafe { GlobalDlmalloc.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if is_mapped(layout.size(), layout.align()) {
            let length = length(layout.size());
            // If the lock is taken, use the kernel instead: nothing waits here, not even a forked child for a thread it
            // doesn't have.
            if !KEPT.try_lock().is_ok_and(|mut kept| kept.put(block, length)) {
                // SAFETY: by its layout it is a whole mapping of `map`, and the caller has freed it. If this fails it
                // stays mapped, which is harmless.
                let _ = unsafe { munmap(block.cast(), length) };
            }
            return;
        }
        // SAFETY: by its layout it is dlmalloc's.
        unsafe { GlobalDlmalloc.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        match (is_mapped(layout.size(), layout.align()), is_mapped(size, layout.align())) {
            // SAFETY: by its layout it is dlmalloc's, and so will the new one be.
            (false, false) => unsafe { GlobalDlmalloc.realloc(block, layout, size) },
            (true, true) if length(layout.size()) == length(size) => block,
            (true, true) => {
                // SAFETY: it is a whole mapping of `map`; the caller uses only the returned address.
                let moved = unsafe { mremap(block.cast(), length(layout.size()), length(size), MremapFlags::MAYMOVE) };
                moved.map_or(null_mut(), |moved| moved.cast())
            }
            (true, false) | (false, true) => {
                // SAFETY: the alignment is valid, as it was in `layout`, and the caller promises a valid size.
                let new = unsafe { self.alloc(Layout::from_size_align_unchecked(size, layout.align())) };
                if !new.is_null() {
                    // SAFETY: both are live, differ, and have at least that many bytes. The old one is then freed, as
                    // the caller expects.
                    unsafe {
                        copy_nonoverlapping(block, new, layout.size().min(size));
                        self.dealloc(block, layout);
                    }
                }
                new
            }
        }
    }
}

/// A freed block of this length.
fn kept(length: usize) -> Option<*mut u8> {
    KEPT.try_lock().ok()?.take(length)
}

/// A new mapping, or null.
fn map(length: usize) -> *mut u8 {
    // SAFETY: no address is requested, so existing mappings don't change.
    let mapped = unsafe { mmap_anonymous(null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) };
    mapped.map_or(null_mut(), |mapped| mapped.cast())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Grows and shrinks a block across the threshold both ways, and checks that its contents survive.
    #[test]
    fn a_block_keeps_its_content_over_the_border_both_ways() {
        for align in [1, 16, PAGE, 2 * PAGE] {
            let sizes = [
                100,
                LARGE - 1,
                LARGE,
                3 * LARGE + 5,
                KEPT_LEN_MAX + 1,
                5 << 20,
                KEPT_LEN_MAX,
                LARGE + 1,
                LARGE - 1,
                50,
            ];
            let mut layout = Layout::from_size_align(sizes[0], align).unwrap();
            // SAFETY: each call gets the layout that the block has, and only its bytes are written and read.
            unsafe {
                let mut block = Allocator.alloc_zeroed(layout);
                for size in sizes {
                    block = Allocator.realloc(block, layout, size);
                    assert!(!block.is_null() && block.addr().is_multiple_of(align), "{size} at {align}");
                    let kept = layout.size().min(size);
                    layout = Layout::from_size_align(size, align).unwrap();
                    let bytes = std::slice::from_raw_parts_mut(block, size);
                    assert!(
                        bytes[..kept.min(50)].iter().all(|byte| *byte == 7 || size == sizes[0]),
                        "{size} at {align}"
                    );
                    bytes.fill(7);
                }
                Allocator.dealloc(block, layout);
            }
        }
    }

    #[test]
    fn what_is_kept_is_bounded_and_given_to_whoever_asks_next() {
        let mut kept = Kept { first: [null_mut(); LENGTHS], bytes: 0 };
        let count = KEPT_BYTES_MAX / KEPT_LEN_MAX;
        let blocks: Vec<*mut u8> = (0..=count).map(|_| map(KEPT_LEN_MAX)).collect();
        let is_kept: Vec<bool> = blocks.iter().map(|block| kept.put(*block, KEPT_LEN_MAX)).collect();
        assert!(is_kept[..count].iter().all(|is_kept| *is_kept) && !is_kept[count]);
        assert_eq!(kept.take(LARGE), None, "of another length");
        assert!(!kept.put(blocks[count], 2 * KEPT_LEN_MAX), "too long to be kept");
        for block in blocks[..count].iter().rev() {
            assert_eq!(kept.take(KEPT_LEN_MAX), Some(*block));
        }
        assert_eq!((kept.take(KEPT_LEN_MAX), kept.bytes), (None, 0));
        for block in blocks {
            // SAFETY: it is a whole mapping of `map` that is in no list.
            unsafe { munmap(block.cast(), KEPT_LEN_MAX) }.unwrap();
        }
    }

    #[test]
    fn a_large_block_is_given_back_when_it_is_freed() {
        // So large that anything mapped in its place in the meantime is smaller.
        const SIZE: usize = 4 << 20;
        let layout = Layout::from_size_align(SIZE, 16).unwrap();
        // SAFETY: the block is written within its size, and freed once with its own layout.
        let address = unsafe {
            let block = Allocator.alloc(layout);
            block.write_bytes(1, SIZE);
            let address = block.addr();
            Allocator.dealloc(block, layout);
            address
        };
        assert!(!is_there(address, SIZE), "{address:x}");
    }

    /// Whether a mapping of at least this size is at an address.
    fn is_there(address: usize, size: usize) -> bool {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let holds = |line: &str| {
            let (from, to) = line.split_once(' ')?.0.split_once('-')?;
            let [from, to] = [from, to].map(|text| usize::from_str_radix(text, 16).ok());
            let (from, to) = (from?, to?);
            Some((from..to).contains(&address) && to - from >= size)
        };
        maps.lines().any(|line| holds(line) == Some(true))
    }

    #[test]
    fn what_is_kept_can_be_unmapped() {
        let mut kept = Kept { first: [null_mut(); LENGTHS], bytes: 0 };
        let blocks = [LARGE, LARGE, 4 * LARGE, KEPT_LEN_MAX].map(|length| (map(length), length));
        for (block, length) in blocks {
            assert!(kept.put(block, length));
        }
        kept.unmap_all();
        assert_eq!((kept.first, kept.bytes), ([null_mut(); LENGTHS], 0));
        let (longest, length) = blocks[3];
        assert!(!is_there(longest.addr(), length), "{longest:?}");
    }
}
