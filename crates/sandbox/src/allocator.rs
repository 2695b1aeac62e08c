//! The allocator of the binary: small blocks from one heap, large ones from the kernel and back to it.
//!
//! musl's own asks the kernel at every turn, which is most of what `saggar run` does outside it; so small blocks are dlmalloc's. That one takes
//! large blocks from its heap too and keeps them: one small block behind them, and a server that once had a few long answers in hand holds
//! their memory for good. A large block is therefore a mapping of its own, which grows without being copied and is gone when it is freed.
//!
//! It is in this crate because it can't be had without `unsafe`.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::{copy_nonoverlapping, null_mut};

use dlmalloc::GlobalDlmalloc;
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap, munmap};

/// From here on a block is a mapping: more than any buffer that comes and goes all the time.
const LARGE: usize = 1 << 20;
/// What a mapping is aligned to.
const PAGE: usize = 4096;

/// What `#[global_allocator]` takes.
#[derive(Debug, Default)]
pub struct Allocator;

/// Whether a block is a mapping. The layout decides, so it is the same answer when the block is freed.
fn is_mapped(size: usize, align: usize) -> bool {
    size >= LARGE && align <= PAGE
}

// SAFETY: each block is dlmalloc's or a mapping by its layout alone, and `GlobalAlloc` promises the same layout when it comes back; both give
// memory that is nobody else's, of at least that size, aligned as asked: a mapping to a page, and no mapping is asked for more.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_mapped(layout.size(), layout.align()) {
            return map(layout.size());
        }
        // SAFETY: the caller's promises are the same.
        unsafe { GlobalDlmalloc.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_mapped(layout.size(), layout.align()) {
            // What the kernel gives is zero.
            return map(layout.size());
        }
        // SAFETY: the caller's promises are the same.
        unsafe { GlobalDlmalloc.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if is_mapped(layout.size(), layout.align()) {
            // SAFETY: by its layout it is a whole mapping of `map`, and the caller is done with it. A failure leaves it mapped, which harms nobody.
            let _ = unsafe { munmap(block.cast(), layout.size()) };
            return;
        }
        // SAFETY: by its layout it is dlmalloc's.
        unsafe { GlobalDlmalloc.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        match (is_mapped(layout.size(), layout.align()), is_mapped(size, layout.align())) {
            // SAFETY: by its layout it is dlmalloc's, and so will the new one be.
            (false, false) => unsafe { GlobalDlmalloc.realloc(block, layout, size) },
            (true, true) => {
                // SAFETY: it is a whole mapping of `map`; who asks uses only what is given back.
                let moved = unsafe { mremap(block.cast(), layout.size(), size, MremapFlags::MAYMOVE) };
                moved.map_or(null_mut(), |moved| moved.cast())
            }
            (true, false) | (false, true) => {
                // SAFETY: the alignment is valid, as it was in `layout`, and the caller promises as much of the size.
                let new = unsafe { self.alloc(Layout::from_size_align_unchecked(size, layout.align())) };
                if !new.is_null() {
                    // SAFETY: both are live, differ, and have at least that many bytes; then the old one is given up, as the caller expects.
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

/// A mapping of its own, or null.
fn map(size: usize) -> *mut u8 {
    // SAFETY: no address is asked for, so nothing that is mapped changes.
    let mapped = unsafe { mmap_anonymous(null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) };
    mapped.map_or(null_mut(), |mapped| mapped.cast())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Grows and shrinks a block over the border both ways, and looks whether what was in it is still there.
    #[test]
    fn a_block_keeps_its_content_over_the_border_both_ways() {
        for align in [1, 16, PAGE, 2 * PAGE] {
            let sizes = [100, LARGE - 1, LARGE, 3 * LARGE + 5, LARGE + 1, LARGE - 1, 50];
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
    fn a_large_block_is_given_back_when_it_is_freed() {
        let layout = Layout::from_size_align(LARGE, 16).unwrap();
        // SAFETY: the block is written within its size, and freed once with its own layout.
        let address = unsafe {
            let block = Allocator.alloc(layout);
            block.write_bytes(1, LARGE);
            let address = block.addr();
            Allocator.dealloc(block, layout);
            address
        };
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let holds = |line: &str| {
            let (from, to) = line.split_once(' ')?.0.split_once('-')?;
            let [from, to] = [from, to].map(|text| usize::from_str_radix(text, 16).ok());
            let (from, to) = (from?, to?);
            Some((from..to).contains(&address) && to - from >= LARGE)
        };
        // Something small may have taken its place meanwhile.
        assert!(!maps.lines().any(|line| holds(line) == Some(true)), "{address:x} in\n{maps}");
    }
}
