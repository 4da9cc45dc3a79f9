/*
 * linkemu: hosts with internet links, on one machine. Every host is a network namespace whose only way out is a TUN device;
 * this process holds the other ends and carries each packet through the two links on its way:
 *
 *     host a -> [loss] -> [uplink of a: queue, rate] -> delay of a + delay of b (+ jitter) -> [downlink of b] -> host b
 *
 * Hosts may be on islands. A packet to another island also passes, after its uplink, the one way out of its own island, which
 * all hosts there share: a queue, a rate and a delay.
 *
 * There is no netem in many kernels, and none is needed. Needs CAP_SYS_ADMIN and CAP_NET_ADMIN.
 *
 *     linkemu SEED CONGESTION_CONTROL HOST...      HOST = ADDRESS,UP,DOWN,DELAY,JITTER,LOSS,QUEUE
 *
 * UP and DOWN in bytes per second; DELAY (one way, this host's leg) and JITTER (largest extra delay) in seconds; LOSS is the
 * probability for a packet that the host sends; QUEUE in bytes for each direction. The namespaces have no names: they live
 * while this process or one inside them does, so that no crash leaves any behind. The first line of output lists their file
 * descriptors, for `nsenter --net=/proc/PID/fd/N`. Then one line of input is answered by one line of output:
 *
 *     cut I J | heal I J      both directions between two hosts (numbers from 0)
 *     groups G0 G1 ...        one number per host: hosts of different groups are cut off, all others are healed
 *     set I FIELD VALUE       up, down, delay, jitter, loss or queue, for packets that come from now on
 *     islands RATE DELAY QUEUE G0 G1 ...      the way out of every island, and one number per host: its island, from 0
 *     count                   counters of every host as JSON
 *
 * At the end of input the counters are printed a last time and the process ends.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { MAX_HOSTS = 64, MTU = 1500, DEVICE_QUEUE = 10000, READS_PER_TURN = 256, LINE = 4096, NUM_FIELDS = 6 };
#define TICK 100e-6 /* seconds; waking up for every packet would cost more than carrying it */
#define LATE 2e-3   /* seconds; a packet that comes this much too late says that the machine is too slow */

enum field { UP, DOWN, DELAY, JITTER, LOSS, QUEUE };
static const char *const field_names[NUM_FIELDS] = {"up", "down", "delay", "jitter", "loss", "queue"};

struct counters {
    uint64_t sent_packets, sent_bytes;         /* that the host gave us, the dropped ones included */
    uint64_t received_packets, received_bytes; /* that we gave to the host */
    uint64_t lost, cut, up_dropped, down_dropped; /* by chance; by a partition; the queue was full */
    uint64_t late;                                /* delivered more than LATE after their time */
    uint64_t crossed_bytes, border_dropped; /* that left the island of the host; the queue there was full, in packets */
};

struct host {
    uint32_t address; /* network byte order */
    int device, namespace, island;
    double field[NUM_FIELDS];
    double up_free, down_free;      /* when the last byte of what is queued will have left */
    uint64_t loss_rng, jitter_rng;  /* a stream each, so that the fate of a host's k-th packet depends on the seed only */
    struct counters counters;
};

enum stage { AT_BORDER, AT_DOWNLINK, ARRIVING }; /* what comes next */

struct packet {
    uint8_t source, target;
    enum stage stage;
    double delay; /* of the legs of both hosts */
    int length;
    uint8_t bytes[];
};

struct entry {
    double due;
    uint64_t order; /* equal times keep the order of arrival */
    struct packet *packet;
};

static struct host hosts[MAX_HOSTS];
static int num_hosts;
static bool is_cut[MAX_HOSTS][MAX_HOSTS];
static double border_rate, border_delay, border_queue; /* of every island's way out */
static double border_free[MAX_HOSTS];                  /* by island: when what is queued will have left */
static struct entry *heap; /* the earliest first */
static size_t heap_size, heap_room;
static uint64_t next_order;

static void die(const char *what) {
    fprintf(stderr, "linkemu: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static struct timespec as_timespec(double seconds) {
    long nanoseconds = seconds > 0 ? (long)(seconds * 1e9) : 0;
    return (struct timespec){.tv_sec = nanoseconds / 1000000000, .tv_nsec = nanoseconds % 1000000000};
}

/* splitmix64, as a number in [0, 1) */
static double draw(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

/* ---- what is under way: a binary heap over times ---- */

static bool is_before(const struct entry *a, const struct entry *b) {
    return a->due < b->due || (a->due == b->due && a->order < b->order);
}

static void schedule(struct packet *packet, double due) {
    if (heap_size == heap_room) {
        heap_room = heap_room ? 2 * heap_room : 4096;
        heap = realloc(heap, heap_room * sizeof *heap);
        if (!heap) die("out of memory");
    }
    struct entry entry = {.due = due, .order = next_order++, .packet = packet};
    size_t i = heap_size++;
    for (; i > 0 && is_before(&entry, &heap[(i - 1) / 2]); i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = entry;
}

static struct packet *take_earliest(void) {
    struct packet *packet = heap[0].packet;
    struct entry last = heap[--heap_size];
    size_t i = 0;
    for (size_t child = 1; child < heap_size; child = 2 * i + 1) {
        if (child + 1 < heap_size && is_before(&heap[child + 1], &heap[child])) child++;
        if (!is_before(&heap[child], &last)) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return packet;
}

/* ---- the links ---- */

/* Join a queue that empties at `rate`; false if it is full. `free_at` becomes the time at which this packet has left. */
static bool enqueue(double *free_at, double now, double rate, double queue_bytes, int length) {
    if (*free_at < now) *free_at = now;
    if ((*free_at - now) * rate + length > queue_bytes) return false;
    *free_at += length / rate;
    return true;
}

/* A packet that the host has sent: schedule a copy, or count why not. */
static void accept_packet(int source, const uint8_t *bytes, int length, double now) {
    struct host *from = &hosts[source];
    int target = 0;
    if (length < 20 || bytes[0] >> 4 != 4) return; /* IPv4 only */
    while (target < num_hosts && memcmp(&hosts[target].address, bytes + 16, 4)) target++;
    if (target == num_hosts || target == source) return;
    from->counters.sent_packets++;
    from->counters.sent_bytes += (uint64_t)length;
    bool is_lost = draw(&from->loss_rng) < from->field[LOSS]; /* drawn for every packet, cut or not */
    if (is_cut[source][target]) {
        from->counters.cut++;
    } else if (is_lost) {
        from->counters.lost++;
    } else if (!enqueue(&from->up_free, now, from->field[UP], from->field[QUEUE], length)) {
        from->counters.up_dropped++;
    } else {
        double jitter = from->field[JITTER] + hosts[target].field[JITTER];
        double delay = from->field[DELAY] + hosts[target].field[DELAY] + (jitter > 0 ? jitter * draw(&from->jitter_rng) : 0);
        struct packet *packet = malloc(sizeof *packet + (size_t)length);
        if (!packet) die("out of memory");
        *packet = (struct packet){.source = (uint8_t)source, .target = (uint8_t)target, .delay = delay, .length = length};
        memcpy(packet->bytes, bytes, (size_t)length);
        bool is_crossing = from->island != hosts[target].island;
        packet->stage = is_crossing ? AT_BORDER : AT_DOWNLINK;
        schedule(packet, from->up_free + (is_crossing ? 0 : delay));
    }
}

static void advance(struct packet *packet, double due, double now) {
    struct host *from = &hosts[packet->source], *to = &hosts[packet->target];
    if (is_cut[packet->source][packet->target]) {
        from->counters.cut++; /* it was under way when the cable was cut */
    } else if (packet->stage == AT_BORDER) {
        if (enqueue(&border_free[from->island], due, border_rate, border_queue, packet->length)) {
            from->counters.crossed_bytes += (uint64_t)packet->length;
            packet->stage = AT_DOWNLINK;
            schedule(packet, border_free[from->island] + border_delay + packet->delay);
            return;
        }
        from->counters.border_dropped++;
    } else if (packet->stage == AT_DOWNLINK) {
        if (enqueue(&to->down_free, due, to->field[DOWN], to->field[QUEUE], packet->length)) {
            packet->stage = ARRIVING;
            schedule(packet, to->down_free);
            return;
        }
        to->counters.down_dropped++;
    } else if (write(to->device, packet->bytes, (size_t)packet->length) == packet->length) {
        to->counters.received_packets++;
        to->counters.received_bytes += (uint64_t)packet->length;
        to->counters.late += now - due > LATE;
    } else {
        to->counters.down_dropped++;
    }
    free(packet);
}

/* True if there was anything. */
static bool read_device(int source) {
    double now = seconds_now();
    for (int i = 0; i < READS_PER_TURN; i++) {
        uint8_t bytes[MTU];
        int length = (int)read(hosts[source].device, bytes, MTU);
        if (length <= 0) return i > 0;
        accept_packet(source, bytes, length, now);
    }
    return true;
}

/* ---- commands ---- */

static void print_counters(void) {
    printf("[");
    for (int i = 0; i < num_hosts; i++) {
        const struct counters *c = &hosts[i].counters;
        printf("%s{\"sent_packets\":%lu,\"sent_bytes\":%lu,\"received_packets\":%lu,\"received_bytes\":%lu,\"lost\":%lu,"
               "\"cut\":%lu,\"up_dropped\":%lu,\"down_dropped\":%lu,\"late\":%lu,\"crossed_bytes\":%lu,\"border_dropped\":%lu}",
               i ? "," : "", c->sent_packets, c->sent_bytes, c->received_packets, c->received_bytes, c->lost, c->cut,
               c->up_dropped, c->down_dropped, c->late, c->crossed_bytes, c->border_dropped);
    }
    printf("]\n");
}

static const char *set_field(const char *line) {
    int host;
    char name[16];
    double value;
    if (sscanf(line, "set %d %15s %lf", &host, name, &value) != 3 || host < 0 || host >= num_hosts) return "set I FIELD VALUE";
    for (int field = 0; field < NUM_FIELDS; field++) {
        if (strcmp(name, field_names[field])) continue;
        if (value < 0 || (value == 0 && field <= DOWN) || (field == LOSS && value > 1)) return "a value out of range";
        hosts[host].field[field] = value;
        return NULL;
    }
    return "no such field";
}

/* Read a number for every host from the words that `strtok` has left; false where there are fewer. */
static bool read_numbers(int *numbers) {
    int n = 0;
    for (char *word = strtok(NULL, " "); word && n < num_hosts; word = strtok(NULL, " ")) numbers[n++] = atoi(word);
    return n == num_hosts;
}

static const char *set_groups(char *line) {
    int group[MAX_HOSTS];
    strtok(line, " ");
    if (!read_numbers(group)) return "one group for every host";
    for (int i = 0; i < num_hosts; i++)
        for (int j = 0; j < num_hosts; j++) is_cut[i][j] = group[i] != group[j];
    return NULL;
}

static const char *set_islands(char *line) {
    double value[3];
    int island[MAX_HOSTS];
    strtok(line, " ");
    for (int k = 0; k < 3; k++) {
        char *word = strtok(NULL, " ");
        if (!word) return "islands RATE DELAY QUEUE G0 G1 ...";
        value[k] = atof(word);
    }
    if (value[0] <= 0 || value[1] < 0 || value[2] <= 0) return "a value out of range";
    if (!read_numbers(island)) return "one island for every host";
    for (int i = 0; i < num_hosts; i++)
        if (island[i] < 0 || island[i] >= MAX_HOSTS) return "no such island";
    for (int i = 0; i < num_hosts; i++) hosts[i].island = island[i];
    border_rate = value[0], border_delay = value[1], border_queue = value[2];
    return NULL;
}

static void obey(char *line) {
    int i, j;
    const char *problem = NULL;
    bool is_cutting = sscanf(line, "cut %d %d", &i, &j) == 2;
    if (is_cutting || sscanf(line, "heal %d %d", &i, &j) == 2) {
        if (i < 0 || j < 0 || i >= num_hosts || j >= num_hosts || i == j) problem = "no such pair of hosts";
        else is_cut[i][j] = is_cut[j][i] = is_cutting;
    } else if (!strncmp(line, "groups ", 7)) {
        problem = set_groups(line);
    } else if (!strncmp(line, "islands ", 8)) {
        problem = set_islands(line);
    } else if (!strncmp(line, "set ", 4)) {
        problem = set_field(line);
    } else if (!strcmp(line, "count")) {
        print_counters();
        return;
    } else {
        problem = "unknown command";
    }
    printf(problem ? "error: %s\n" : "ok\n", problem);
}

/* False at the end of input. Who asks waits for the answer and writes a line at once, so that no line comes in pieces. */
static bool read_commands(void) {
    char lines[LINE];
    ssize_t got = read(STDIN_FILENO, lines, sizeof lines - 1);
    if (got <= 0) return false;
    lines[got] = 0;
    for (char *rest = lines, *line; (line = strsep(&rest, "\n")) && *line;) obey(line);
    return true;
}

/* ---- beginning ---- */

static void configure(int control, unsigned long what, struct ifreq *request) {
    if (ioctl(control, what, request)) die("an interface");
}

/* Enter a new namespace with loopback and an interface `link0` that has the host's address. */
static void make_host(struct host *host, const char *congestion_control) {
    if (unshare(CLONE_NEWNET)) die("a new network namespace");
    if ((host->namespace = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC)) < 0) die("/proc/self/ns/net");
    if ((host->device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC)) < 0) die("/dev/net/tun");
    int setting = open("/proc/sys/net/ipv4/tcp_congestion_control", O_WRONLY | O_CLOEXEC);
    if (setting < 0 || write(setting, congestion_control, strlen(congestion_control)) < 0) die(congestion_control);
    close(setting);
    int control = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct ifreq request = {.ifr_name = "link0", .ifr_flags = IFF_TUN | IFF_NO_PI | IFF_NAPI}; /* NAPI joins segments (GRO) */
    configure(host->device, TUNSETIFF, &request);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = host->address};
    memcpy(&request.ifr_addr, &address, sizeof address);
    configure(control, SIOCSIFADDR, &request);
    address.sin_addr.s_addr = htonl(0xffff0000);
    memcpy(&request.ifr_netmask, &address, sizeof address);
    configure(control, SIOCSIFNETMASK, &request);
    request.ifr_mtu = MTU;
    configure(control, SIOCSIFMTU, &request);
    request.ifr_qlen = DEVICE_QUEUE; /* what is dropped is dropped here, where it is counted */
    configure(control, SIOCSIFTXQLEN, &request);
    request.ifr_flags = IFF_UP | IFF_RUNNING;
    configure(control, SIOCSIFFLAGS, &request);
    strcpy(request.ifr_name, "lo");
    configure(control, SIOCSIFFLAGS, &request);
    close(control);
}

static void parse_host(struct host *host, char *text) {
    char *word = strtok(text, ",");
    if (!word || inet_pton(AF_INET, word, &host->address) != 1) die("the address of a host");
    for (int field = 0; field < NUM_FIELDS; field++) {
        if (!(word = strtok(NULL, ","))) die("a host has ADDRESS,UP,DOWN,DELAY,JITTER,LOSS,QUEUE");
        host->field[field] = atof(word);
    }
}

int main(int argc, char **argv) {
    errno = EINVAL;
    if (argc < 4 || argc - 3 > MAX_HOSTS) die("linkemu SEED CONGESTION_CONTROL ADDRESS,UP,DOWN,DELAY,JITTER,LOSS,QUEUE...");
    uint64_t seed = strtoull(argv[1], NULL, 10);
    struct pollfd polled[1 + MAX_HOSTS] = {{.fd = STDIN_FILENO, .events = POLLIN}};
    for (int i = 0; i < argc - 3; i++) {
        struct host *host = &hosts[num_hosts++];
        parse_host(host, argv[3 + i]);
        make_host(host, argv[2]);
        host->loss_rng = seed * 1000003u + 2 * (uint64_t)i; /* splitmix64 scatters neighbouring states */
        draw(&host->loss_rng);
        host->loss_rng *= 0x2545f4914f6cdd1du;
        host->jitter_rng = ~host->loss_rng;
        polled[1 + i] = (struct pollfd){.fd = host->device, .events = POLLIN};
    }
    prctl(PR_SET_TIMERSLACK, 1ul);
    /* A link does not wait for the programs that use it. Where this is refused, the counter `late` will tell. */
    sched_setscheduler(0, SCHED_RR, &(struct sched_param){.sched_priority = 1});
    setlinebuf(stdout);
    for (int i = 0; i < num_hosts; i++) printf("%d%c", hosts[i].namespace, i + 1 < num_hosts ? ' ' : '\n');
    for (bool is_open = true; is_open;) {
        struct timespec timeout = as_timespec(heap_size ? heap[0].due - seconds_now() : 0);
        if (ppoll(polled, 1 + (nfds_t)num_hosts, heap_size ? &timeout : NULL, NULL) < 0 && errno != EINTR) die("ppoll");
        bool is_busy = false;
        if (polled[0].revents) is_open = read_commands();
        for (int i = 0; i < num_hosts; i++)
            if (polled[1 + i].revents & POLLIN) is_busy |= read_device(i);
        for (double now = seconds_now(); heap_size && heap[0].due <= now; is_busy = true) {
            double due = heap[0].due;
            advance(take_earliest(), due, now);
        }
        struct timespec tick = as_timespec(TICK);
        if (is_busy) nanosleep(&tick, NULL);
    }
    print_counters();
    return 0;
}
