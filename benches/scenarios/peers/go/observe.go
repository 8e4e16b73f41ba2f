package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// settle is the wait for a process to become idle before its memory is measured.
const settle = 2 * time.Second

// informer is the common interface of all peers.
type informer interface {
	AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error)
}

// peer makes an informer of pods, and the function that runs it until the context ends.
type peer func(config *rest.Config, strip bool) (informer, func(context.Context), error)

var peers = map[string]peer{
	"client-go-dynamic":  dynamicInformer,
	"client-go-json":     typedInformer("application/json"),
	"client-go-protobuf": typedInformer("application/vnd.kubernetes.protobuf"),
	"controller-runtime": controllerRuntimeCache,
}

// observe runs a peer over all pods, then all events, and prints a line after each. A line has nanoseconds of CPU and of
// wall time, resident bytes, live heap bytes above the start (only after the events), and 0 for bytes written.
func observe(name string, args []string) error {
	before := meterNow()
	open, known := peers[name]
	if !known {
		return fmt.Errorf("unknown peer %q", name)
	}
	url, caFile := args[0], args[1]
	strip, err0 := strconv.ParseBool(args[2])
	pods, err1 := strconv.Atoi(args[3])
	events, err2 := strconv.Atoi(args[4])
	if err := errors.Join(err0, err1, err2); err != nil {
		return err
	}
	config := &rest.Config{Host: url}
	if strings.HasPrefix(url, "https:") {
		config.CAFile = caFile
	}
	count := newCounter(pods, events)
	began := time.Now()
	informer, run, err := open(config, strip)
	if err != nil {
		return err
	}
	registration, err := informer.AddEventHandler(count)
	if err != nil {
		return err
	}
	go run(context.Background())
	<-count.allAdded
	for !registration.HasSynced() {
		time.Sleep(time.Millisecond)
	}
	wall := time.Since(began)
	time.Sleep(settle)
	synced := meterNow()
	report(before, synced, wall, 0)
	<-count.allUpdated
	wall = time.Since(count.firstUpdate)
	time.Sleep(settle)
	report(synced, meterNow(), wall, liveHeap()-before.heap)
	select {} // until it is killed
}

// counter is a handler that counts.
type counter struct {
	pods, events   int
	added, updated int
	firstUpdate    time.Time
	allAdded       chan struct{}
	allUpdated     chan struct{}
}

func newCounter(pods, events int) *counter {
	return &counter{pods: pods, events: events, allAdded: make(chan struct{}), allUpdated: make(chan struct{})}
}

func (c *counter) OnAdd(any, bool) {
	c.added++
	if c.added == c.pods {
		close(c.allAdded)
	}
}

func (c *counter) OnUpdate(any, any) {
	if c.updated == 0 {
		c.firstUpdate = time.Now()
	}
	c.updated++
	if c.updated == c.events {
		close(c.allUpdated)
	}
}

func (c *counter) OnDelete(any) {}

// meter is the resource usage of this process.
type meter struct {
	cpu            time.Duration
	resident, heap int64
}

func meterNow() meter {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err) // it cannot fail with these arguments
	}
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	cpu := time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	return meter{cpu, resident(), int64(memory.HeapAlloc)}
}

// resident returns the resident bytes of this process.
func resident() int64 {
	text, err := os.ReadFile("/proc/self/statm")
	var size, pages int64
	if err == nil {
		_, err = fmt.Sscan(string(text), &size, &pages)
	}
	if err != nil {
		panic(err) // the bench needs /proc
	}
	return pages * int64(os.Getpagesize())
}

// liveHeap collects garbage and returns the remaining bytes. It must be called last, because it changes the time of the
// next collection.
func liveHeap() int64 {
	runtime.GC()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	return int64(memory.HeapAlloc)
}

func report(before, after meter, wall time.Duration, live int64) {
	fmt.Println((after.cpu - before.cpu).Nanoseconds(), wall.Nanoseconds(), after.resident, max(live, 0), 0)
}
