// Allocates resource claims with the allocator of kube-scheduler; see dra_programs.py.
//
// A line of the input is a cluster of one node: its DeviceClasses, its ResourceSlices, and
// ResourceClaims, which are allocated one after the other. The line of the output has the allocation
// of each claim, null for one that does not fit.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	core "k8s.io/api/core/v1"
	api "k8s.io/api/resource/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

// features are those that are on by default in Kubernetes 1.36.
var features = structured.Features{
	AdminAccess:            true,
	ConsumableCapacity:     true,
	DeviceBindingAndStatus: true,
	DeviceTaints:           true,
	PartitionableDevices:   true,
	PrioritizedList:        true,
}

type cluster struct {
	Classes classes              `json:"classes"`
	Slices  []*api.ResourceSlice `json:"slices"`
	Claims  []*api.ResourceClaim `json:"claims"`
}

type classes []*api.DeviceClass

func (c classes) List() ([]*api.DeviceClass, error) { return c, nil }

func (c classes) Get(name string) (*api.DeviceClass, error) {
	for _, each := range c {
		if each.Name == name {
			return each, nil
		}
	}
	return nil, fmt.Errorf("no class %s", name)
}

func main() {
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	cache := cel.NewCache(100, cel.Features{EnableConsumableCapacity: true})
	for {
		var read cluster
		err := in.Decode(&read)
		if errors.Is(err, io.EOF) {
			return
		}
		if err == nil {
			var allocated []*api.AllocationResult
			if allocated, err = allocate(read, cache); err == nil {
				err = out.Encode(allocated)
			}
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

func allocate(its cluster, cache *cel.Cache) ([]*api.AllocationResult, error) {
	node := &core.Node{ObjectMeta: meta.ObjectMeta{Name: *its.Slices[0].Spec.NodeName}}
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	allocated := make([]*api.AllocationResult, len(its.Claims))
	for at, claim := range its.Claims {
		allocator, err := structured.NewAllocator(
			context.Background(), features, state, its.Classes, its.Slices, cache)
		if err != nil {
			return nil, err
		}
		found, err := allocator.Allocate(context.Background(), node, []*api.ResourceClaim{claim})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", claim.Name, err)
		}
		if len(found) == 1 {
			allocated[at] = &found[0]
			book(state, found[0].Devices.Results)
		}
	}
	return allocated, nil
}

// book counts devices as used, as the scheduler does when it sees a claim's status.
func book(state structured.AllocatedState, results []api.DeviceRequestAllocationResult) {
	for _, each := range results {
		id := structured.MakeDeviceID(each.Driver, each.Pool, each.Device)
		if each.ShareID == nil {
			state.AllocatedDevices.Insert(id)
			continue
		}
		state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, each.ShareID))
		state.AggregatedCapacity.Insert(
			structured.NewDeviceConsumedCapacity(id, each.ConsumedCapacity))
	}
}
