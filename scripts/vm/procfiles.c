// SPDX-License-Identifier: MIT OR GPL-2.0-only
// Files of /proc that other kernels have and this one lacks, so that covering them can be tried: `latency_stats` (LATENCYTOP),
// `asound` (sound cards) and `scsi` (SCSI_PROC_FS). Loaded in the emulated machine of `make test-vm`, and nowhere else.
#include <linux/module.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>

static struct proc_dir_entry *entries[3];

static int show(struct seq_file *file, void *unused)
{
	seq_puts(file, "of the host\n");
	return 0;
}

static void leave(void)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(entries); i++)
		proc_remove(entries[i]);
}

static int __init enter(void)
{
	entries[0] = proc_create_single("latency_stats", 0444, NULL, show);
	entries[1] = proc_mkdir("asound", NULL);
	entries[2] = proc_mkdir("scsi", NULL);
	if (!entries[0] || !entries[1] || !entries[2] ||
	    !proc_create_single("cards", 0444, entries[1], show) ||
	    !proc_create_single("scsi", 0444, entries[2], show)) {
		leave();
		return -ENOMEM;
	}
	return 0;
}

module_init(enter);
module_exit(leave);
MODULE_LICENSE("Dual MIT/GPL");
