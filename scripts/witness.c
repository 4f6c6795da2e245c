/* witness: writes files and remembers what it was promised; later says whether the promises were kept.
 *
 *   witness write DIRECTORY LOG [OPTION]...   works until it is stopped; appends a line to LOG after each operation that is acknowledged
 *   witness verify DIRECTORY LOG [SEED]       compares DIRECTORY with what LOG says; one sentence, exit 0 or 1
 *   witness fill FILE BYTES                   writes a known pattern by requests of 1 MiB, then fsync
 *   witness compare FILE BYTES                reads it back
 *   witness fsync FILE COUNT                  4 KiB overwrites, each with fsync: medians in microseconds, "write fsync p99-of-both"
 *   witness power-cut                         stops the virtual machine at this instruction
 *
 * Operation N is a function of the seed and N alone. So the log needs only the numbers, and `verify` can compute the one operation
 * that may have been under way when everything stopped: it alone may be there, not there or, where it writes data, there in part.
 *
 * Options of `write`:
 *   --fsync yes|no|never  whether an operation on data is acknowledged by fsync (default) or by the return of write itself (strict mode);
 *                         never: it is not, and the file stays open, since close lets FUSE write. A test of the test: it must be missed
 *   --seed N              another sequence
 *   --operations N        stop after so many
 *   --announce N          print "acknowledged N" every N operations
 *   --power-cut-after N   cut the machine's power right after the acknowledgement of operation N, before another instruction
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/io.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { LIVE_FILES_MAX = 48, SUBDIRECTORIES = 4, NAME_BYTES = 32, FILE_BYTES_MAX = 1 << 20, MIB = 1 << 20 };

static void stop(const char *format, ...) {
	va_list arguments;
	va_start(arguments, format);
	fputs("witness: ", stdout);
	vprintf(format, arguments);
	puts("");
	exit(1);
}

static void stop_system(const char *action, const char *name) { stop("%s %s: %s", action, name, strerror(errno)); }

/* ---- numbers and bytes that depend on their seed alone (splitmix64) ---- */

static uint64_t next_random(uint64_t *state) {
	uint64_t z = *state += 0x9e3779b97f4a7c15u;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

static uint64_t below(uint64_t *state, uint64_t bound) { return next_random(state) % bound; }

static void fill(unsigned char *bytes, size_t length, uint64_t seed) {
	for (size_t i = 0; i < length; i += 8) {
		uint64_t word = next_random(&seed);
		memcpy(bytes + i, &word, length - i < 8 ? length - i : 8);
	}
}

/* ---- the model: what the directory holds after N operations ---- */

struct file {
	char name[NAME_BYTES]; /* empty: no file */
	size_t size;
	unsigned char *bytes; /* FILE_BYTES_MAX; beyond size all zero */
};

struct model {
	struct file files[LIVE_FILES_MAX];
};

enum kind { CREATE, WRITE, APPEND, TRUNCATE, RENAME, RENAME_OVER, UNLINK };
static const char *const KIND_NAMES[] = {"create", "write", "append", "truncate", "rename", "rename over a file", "unlink"};

struct operation {
	enum kind kind;
	int file, target;          /* slots of the model */
	char new_name[NAME_BYTES]; /* CREATE, RENAME */
	size_t offset, length;     /* data; TRUNCATE: length is the new size */
	uint64_t content_seed;
};

static int live_slot(const struct model *model, uint64_t *random) {
	int start = below(random, LIVE_FILES_MAX);
	for (int i = 0; i < LIVE_FILES_MAX; i++) {
		int slot = (start + i) % LIVE_FILES_MAX;
		if (model->files[slot].name[0]) return slot;
	}
	return -1;
}

static int free_slot(const struct model *model) {
	for (int slot = 0; slot < LIVE_FILES_MAX; slot++)
		if (!model->files[slot].name[0]) return slot;
	return -1;
}

/* Sizes on both sides of every limit of the splitting: a line, a log page, a sector, a block. */
static size_t some_size(uint64_t *random) {
	static const size_t ABOUT[] = {1, 64, 1000, 4096, 5000, 16384, 65536, 70000, 131072, 300000};
	size_t about = ABOUT[below(random, sizeof ABOUT / sizeof *ABOUT)];
	return below(random, 2) ? about : 1 + below(random, about);
}

static struct operation plan(const struct model *model, uint64_t seed, uint64_t number) {
	static const enum kind OFTEN[] = {CREATE, CREATE, CREATE, WRITE, WRITE, WRITE, WRITE, APPEND, APPEND, APPEND, TRUNCATE, RENAME, RENAME_OVER, UNLINK};
	uint64_t random = seed * 0x100000001b3u + number;
	struct operation operation = {.kind = OFTEN[below(&random, sizeof OFTEN / sizeof *OFTEN)], .content_seed = next_random(&random)};
	int live = live_slot(model, &random), free = free_slot(model);
	if (live < 0) operation.kind = CREATE;
	if (free < 0 && operation.kind == CREATE) operation.kind = UNLINK;
	operation.file = operation.kind == CREATE ? free : live;
	snprintf(operation.new_name, NAME_BYTES, "d%d/f%06llu", (int)below(&random, SUBDIRECTORIES), (unsigned long long)number);
	const struct file *file = &model->files[operation.file];
	switch (operation.kind) {
	case CREATE:
		operation.length = some_size(&random);
		break;
	case WRITE:
		operation.offset = below(&random, file->size + 1);
		if (below(&random, 2)) operation.offset &= ~(size_t)4095;
		operation.length = some_size(&random);
		break;
	case APPEND:
		operation.offset = file->size;
		operation.length = 1 + below(&random, 3000);
		break;
	case TRUNCATE:
		operation.length = below(&random, 2) ? below(&random, file->size + 1) : file->size + below(&random, 100000);
		if (operation.length > FILE_BYTES_MAX) operation.length = FILE_BYTES_MAX;
		break;
	case RENAME_OVER:
		operation.target = live_slot(model, &random);
		if (operation.target == operation.file) operation.kind = RENAME;
		break;
	case RENAME:
	case UNLINK:
		break;
	}
	if (operation.kind == WRITE || operation.kind == APPEND) {
		if (operation.offset >= FILE_BYTES_MAX) operation.offset = FILE_BYTES_MAX - 1;
		if (operation.offset + operation.length > FILE_BYTES_MAX) operation.length = FILE_BYTES_MAX - operation.offset;
	}
	return operation;
}

static void apply(struct model *model, const struct operation *operation) {
	struct file *file = &model->files[operation->file];
	switch (operation->kind) {
	case CREATE:
		strcpy(file->name, operation->new_name);
		file->size = 0;
		if (!file->bytes && !(file->bytes = calloc(1, FILE_BYTES_MAX))) stop("no memory");
		memset(file->bytes, 0, FILE_BYTES_MAX);
		/* fall through */
	case WRITE:
	case APPEND:
		fill(file->bytes + operation->offset, operation->length, operation->content_seed);
		if (operation->offset + operation->length > file->size) file->size = operation->offset + operation->length;
		break;
	case TRUNCATE:
		if (operation->length < file->size) memset(file->bytes + operation->length, 0, file->size - operation->length);
		file->size = operation->length;
		break;
	case RENAME:
		strcpy(file->name, operation->new_name);
		break;
	case RENAME_OVER:
		strcpy(file->name, model->files[operation->target].name);
		model->files[operation->target].name[0] = 0;
		break;
	case UNLINK:
		file->name[0] = 0;
		break;
	}
}

/* ---- write: the operations, for real ---- */

enum promise { BY_FSYNC, BY_WRITE, NONE };

static void make_directories(int directory) {
	for (int i = 0; i < SUBDIRECTORIES; i++) {
		char name[NAME_BYTES];
		snprintf(name, sizeof name, "d%d", i);
		if (mkdirat(directory, name, 0755) && errno != EEXIST) stop_system("mkdir", name);
	}
}

static void write_all(int file, const unsigned char *bytes, size_t length, off_t offset, const char *name) {
	while (length) {
		ssize_t written = pwrite(file, bytes, length, offset);
		if (written <= 0) stop_system("write", name);
		bytes += written, length -= written, offset += written;
	}
}

static void perform(int directory, const struct model *model, const struct operation *operation, enum promise promise) {
	static unsigned char bytes[FILE_BYTES_MAX];
	const char *name = operation->kind == CREATE ? operation->new_name : model->files[operation->file].name;
	const char *target = operation->kind == RENAME_OVER ? model->files[operation->target].name : operation->new_name;
	int file;
	switch (operation->kind) {
	case CREATE:
	case WRITE:
	case APPEND:
	case TRUNCATE:
		file = openat(directory, name, operation->kind == CREATE ? O_RDWR | O_CREAT | O_EXCL : O_RDWR, 0644);
		if (file < 0) stop_system("open", name);
		if (operation->kind == TRUNCATE) {
			if (ftruncate(file, operation->length)) stop_system("truncate", name);
		} else {
			fill(bytes, operation->length, operation->content_seed);
			write_all(file, bytes, operation->length, operation->offset, name);
		}
		if (promise == BY_FSYNC && fsync(file)) stop_system("fsync", name);
		if (promise != NONE && close(file)) stop_system("close", name);
		break;
	case RENAME:
	case RENAME_OVER:
		if (renameat(directory, name, directory, target)) stop_system("rename", name);
		break;
	case UNLINK:
		if (unlinkat(directory, name, 0)) stop_system("unlink", name);
		break;
	}
}

static void cut_power(void) {
	if (ioperm(0xf4, 1, 1)) stop_system("ioperm", "0xf4");
	outb(0x10, 0xf4);
	stop("the power is still on: is this the virtual machine?");
}

static int write_command(const char *directory_name, const char *log_name, char **options) {
	enum promise promise = BY_FSYNC;
	uint64_t seed = 1, operations = UINT64_MAX, announce = 0, power_cut_after = UINT64_MAX;
	for (; *options; options += 2) {
		if (!options[1]) stop("%s needs a value", *options);
		if (!strcmp(*options, "--fsync")) promise = !strcmp(options[1], "yes") ? BY_FSYNC : !strcmp(options[1], "no") ? BY_WRITE : NONE;
		else if (!strcmp(*options, "--seed")) seed = strtoull(options[1], NULL, 10);
		else if (!strcmp(*options, "--operations")) operations = strtoull(options[1], NULL, 10);
		else if (!strcmp(*options, "--announce")) announce = strtoull(options[1], NULL, 10);
		else if (!strcmp(*options, "--power-cut-after")) power_cut_after = strtoull(options[1], NULL, 10);
		else stop("%s is no option", *options);
	}
	int directory = open(directory_name, O_RDONLY | O_DIRECTORY);
	if (directory < 0) stop_system("open", directory_name);
	int log = open(log_name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	if (log < 0) stop_system("open", log_name);
	make_directories(directory);
	struct model *model = calloc(1, sizeof *model);
	for (uint64_t number = 0; number < operations; number++) {
		struct operation operation = plan(model, seed, number);
		perform(directory, model, &operation, promise);
		apply(model, &operation);
		char line[32];
		int length = snprintf(line, sizeof line, "%llu\n", (unsigned long long)number);
		if (write(log, line, length) != length) stop_system("write", log_name);
		if (number == power_cut_after) cut_power();
		if (announce && (number + 1) % announce == 0) {
			printf("acknowledged %llu\n", (unsigned long long)number + 1);
			fflush(stdout);
		}
	}
	return 0;
}

/* ---- verify ---- */

struct found {
	bool exists;
	size_t size;
	unsigned char *bytes;
};

static struct found read_file(int directory, const char *name) {
	struct found found = {0};
	struct stat status;
	int file = openat(directory, name, O_RDONLY);
	if (file < 0 && errno == ENOENT) return found;
	if (file < 0) stop_system("open", name);
	if (fstat(file, &status)) stop_system("stat", name);
	found = (struct found){.exists = true, .size = status.st_size, .bytes = malloc(status.st_size + 1)};
	if (!found.bytes) stop("no memory");
	for (size_t done = 0; done < found.size;) {
		ssize_t count = read(file, found.bytes + done, found.size - done);
		if (count < 0) stop_system("read", name);
		if (count == 0) stop("%s: ends after %zu of %zu bytes", name, done, found.size);
		done += count;
	}
	close(file);
	return found;
}

static const struct file *find(const struct model *model, const char *name) {
	for (int slot = 0; slot < LIVE_FILES_MAX; slot++)
		if (!strcmp(model->files[slot].name, name)) return &model->files[slot];
	return NULL;
}

/* Whether the file is exactly as the model (NULL: absent) says. */
static bool is(const struct found *found, const struct file *expected) {
	if (!expected || !found->exists) return !expected == !found->exists;
	return found->size == expected->size && !memcmp(found->bytes, expected->bytes, found->size);
}

static void require(int directory, const char *name, const struct file *expected) {
	struct found found = read_file(directory, name);
	if (!is(&found, expected)) {
		if (!expected) stop("%s: exists, though its removal was acknowledged", name);
		if (!found.exists) stop("%s: is not there, though it was acknowledged", name);
		if (found.size != expected->size) stop("%s: has %zu bytes, %zu were acknowledged", name, found.size, expected->size);
		for (size_t i = 0; i < found.size; i++)
			if (found.bytes[i] != expected->bytes[i])
				stop("%s: byte %zu of %zu is %02x, %02x was acknowledged", name, i, found.size, found.bytes[i], expected->bytes[i]);
	}
	free(found.bytes);
}

/* Data under way: each byte is as before or as after, the size is between. */
static void require_between(int directory, const char *name, const struct file *before, const struct file *after) {
	struct found found = read_file(directory, name);
	if (!found.exists && before) stop("%s: is not there, though it was acknowledged", name);
	if (!found.exists) return;
	size_t least = before ? before->size : 0;
	if (found.size < least || found.size > after->size) stop("%s: has %zu bytes, neither before (%zu) nor after (%zu)", name, found.size, least, after->size);
	for (size_t i = 0; i < found.size; i++) {
		unsigned char old = before ? before->bytes[i] : 0;
		if (found.bytes[i] != old && found.bytes[i] != after->bytes[i]) stop("%s: byte %zu is neither the old nor the new one", name, i);
	}
	free(found.bytes);
}

/* The operation under way: metadata happened or did not, as a whole. */
static void verify_under_way(int directory, const struct model *before, const struct model *after, const struct operation *operation) {
	const char *name = operation->kind == CREATE ? operation->new_name : before->files[operation->file].name;
	const char *target = operation->kind == RENAME_OVER ? before->files[operation->target].name : operation->new_name;
	if (operation->kind == CREATE || operation->kind == WRITE || operation->kind == APPEND) {
		require_between(directory, name, find(before, name), find(after, name));
		return;
	}
	bool renames = operation->kind == RENAME || operation->kind == RENAME_OVER;
	struct found source = read_file(directory, name), moved = renames ? read_file(directory, target) : (struct found){0};
	bool is_before = is(&source, find(before, name)) && (!renames || is(&moved, find(before, target)));
	bool is_after = is(&source, find(after, name)) && (!renames || is(&moved, find(after, target)));
	if (!is_before && !is_after) stop("%s of %s: happened in part", KIND_NAMES[operation->kind], name);
	free(source.bytes);
	free(moved.bytes);
}

static bool touches(const struct model *before, const struct operation *operation, const char *name) {
	return !strcmp(name, operation->new_name) || !strcmp(name, before->files[operation->file].name) ||
	       (operation->kind == RENAME_OVER && !strcmp(name, before->files[operation->target].name));
}

static struct model *copy_of(const struct model *model) {
	struct model *copy = malloc(sizeof *copy);
	*copy = *model;
	for (int slot = 0; slot < LIVE_FILES_MAX; slot++) {
		if (!model->files[slot].bytes) continue;
		copy->files[slot].bytes = malloc(FILE_BYTES_MAX);
		memcpy(copy->files[slot].bytes, model->files[slot].bytes, FILE_BYTES_MAX);
	}
	return copy;
}

static uint64_t acknowledged_in(const char *log_name) {
	FILE *log = fopen(log_name, "r");
	if (!log) stop_system("open", log_name);
	char line[64];
	uint64_t count = 0;
	while (fgets(line, sizeof line, log)) {
		if (!strchr(line, '\n')) break; /* cut while it was written */
		if (strtoull(line, NULL, 10) != count) stop("%s: line %llu is not in sequence", log_name, (unsigned long long)count);
		count++;
	}
	fclose(log);
	return count;
}

static int verify_command(const char *directory_name, const char *log_name, const char *seed_text) {
	uint64_t acknowledged = acknowledged_in(log_name), seed = seed_text ? strtoull(seed_text, NULL, 10) : 1;
	if (!acknowledged) stop("%s: nothing was acknowledged", log_name);
	int directory = open(directory_name, O_RDONLY | O_DIRECTORY);
	if (directory < 0) stop_system("open", directory_name);
	struct model *before = calloc(1, sizeof *before);
	for (uint64_t number = 0; number < acknowledged; number++) {
		struct operation operation = plan(before, seed, number);
		apply(before, &operation);
	}
	struct operation under_way = plan(before, seed, acknowledged);
	struct model *after = copy_of(before);
	apply(after, &under_way);

	size_t files = 0, bytes = 0;
	for (int slot = 0; slot < LIVE_FILES_MAX; slot++) {
		const struct file *file = &before->files[slot];
		if (!file->name[0] || touches(before, &under_way, file->name)) continue;
		require(directory, file->name, file);
		files++, bytes += file->size;
	}
	verify_under_way(directory, before, after, &under_way);
	for (int i = 0; i < SUBDIRECTORIES; i++) {
		char path[4096], name[NAME_BYTES + 256];
		snprintf(path, sizeof path, "%s/d%d", directory_name, i);
		DIR *stream = opendir(path);
		if (!stream) stop_system("open", path);
		for (struct dirent *entry; (entry = readdir(stream));) {
			if (entry->d_name[0] == '.') continue;
			snprintf(name, sizeof name, "d%d/%s", i, entry->d_name);
			if (!find(before, name) && !touches(before, &under_way, name)) stop("%s: exists, though nothing made it or its removal was acknowledged", name);
		}
		closedir(stream);
	}
	printf("%llu acknowledged operations kept: %zu files, %zu bytes as promised; under way: %s\n", (unsigned long long)acknowledged, files, bytes,
	       KIND_NAMES[under_way.kind]);
	return 0;
}

/* ---- the other commands ---- */

static int pattern_command(const char *name, uint64_t bytes, bool writes) {
	static unsigned char expected[MIB], found[MIB];
	int file = open(name, writes ? O_RDWR | O_CREAT | O_TRUNC : O_RDONLY, 0644);
	if (file < 0) stop_system("open", name);
	for (uint64_t offset = 0; offset < bytes; offset += MIB) {
		size_t length = bytes - offset < MIB ? bytes - offset : MIB;
		fill(expected, length, offset + 7);
		if (writes) {
			write_all(file, expected, length, offset, name);
			continue;
		}
		for (size_t done = 0; done < length;) {
			ssize_t count = pread(file, found + done, length - done, offset + done);
			if (count < 0) stop_system("read", name);
			if (count == 0) stop("%s: ends at %llu", name, (unsigned long long)(offset + done));
			done += count;
		}
		if (memcmp(expected, found, length)) stop("%s: the MiB at %llu is not what was written", name, (unsigned long long)offset);
	}
	if (writes && fsync(file)) stop_system("fsync", name);
	if (close(file)) stop_system("close", name);
	return 0;
}

static double now_us(void) {
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static int by_size(const void *a, const void *b) { return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b); }

static int fsync_command(const char *name, size_t count) {
	enum { PAGE = 4096, PAGES = 256 };
	static unsigned char bytes[PAGE];
	double *writes = calloc(count, sizeof *writes), *fsyncs = calloc(count, sizeof *fsyncs), *both = calloc(count, sizeof *both);
	int file = open(name, O_RDWR | O_CREAT, 0644);
	if (file < 0) stop_system("open", name);
	for (size_t i = 0; i < PAGES; i++) write_all(file, bytes, PAGE, i * PAGE, name);
	if (fsync(file)) stop_system("fsync", name);
	for (size_t i = 0; i < count; i++) {
		fill(bytes, PAGE, i);
		double start = now_us();
		write_all(file, bytes, PAGE, i * 37 % PAGES * PAGE, name);
		double written = now_us();
		if (fsync(file)) stop_system("fsync", name);
		double synced = now_us();
		writes[i] = written - start, fsyncs[i] = synced - written, both[i] = synced - start;
	}
	qsort(writes, count, sizeof *writes, by_size);
	qsort(fsyncs, count, sizeof *fsyncs, by_size);
	qsort(both, count, sizeof *both, by_size);
	printf("%.1f %.1f %.1f\n", writes[count / 2], fsyncs[count / 2], both[count * 99 / 100]);
	return 0;
}

int main(int count, char **arguments) {
	const char *command = count > 1 ? arguments[1] : "";
	if (!strcmp(command, "write") && count >= 4) return write_command(arguments[2], arguments[3], arguments + 4);
	if (!strcmp(command, "verify") && (count == 4 || count == 5)) return verify_command(arguments[2], arguments[3], arguments[4]);
	if (!strcmp(command, "fill") && count == 4) return pattern_command(arguments[2], strtoull(arguments[3], NULL, 10), true);
	if (!strcmp(command, "compare") && count == 4) return pattern_command(arguments[2], strtoull(arguments[3], NULL, 10), false);
	if (!strcmp(command, "fsync") && count == 4) return fsync_command(arguments[2], strtoull(arguments[3], NULL, 10));
	if (!strcmp(command, "power-cut") && count == 2) cut_power();
	fputs("usage: witness write|verify DIRECTORY LOG, witness fill|compare FILE BYTES, witness fsync FILE COUNT, witness power-cut\n", stderr);
	return 2;
}
