// A driver for resource claims on kubeletplugin, which most drivers are made with; see dra_programs.py.
//
//	driver KUBECONFIG KUBELET
//
// It prepares whatever it is asked for, without CDI devices, and says on its output what it was asked
// for, a word and a claim's name a line. It ends with its input.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	api "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
)

const name = "driver.example.com"

type driver struct{}

func (driver) PrepareResourceClaims(
	_ context.Context, claims []*api.ResourceClaim,
) (map[types.UID]kubeletplugin.PrepareResult, error) {
	prepared := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		fmt.Println("prepare", claim.Name)
		var devices []kubeletplugin.Device
		for _, each := range claim.Status.Allocation.Devices.Results {
			devices = append(devices, kubeletplugin.Device{
				Requests: []string{each.Request}, PoolName: each.Pool, DeviceName: each.Device,
				ShareID: each.ShareID,
			})
		}
		prepared[claim.UID] = kubeletplugin.PrepareResult{Devices: devices}
	}
	return prepared, nil
}

func (driver) UnprepareResourceClaims(
	_ context.Context, claims []kubeletplugin.NamespacedObject,
) (map[types.UID]error, error) {
	gone := map[types.UID]error{}
	for _, claim := range claims {
		fmt.Println("unprepare", claim.Name)
		gone[claim.UID] = nil
	}
	return gone, nil
}

func (driver) HandleError(_ context.Context, err error, text string) { fail(text, err) }

func main() {
	kubeconfig, kubelet := os.Args[1], os.Args[2]
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		fail("kubeconfig", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		fail("client", err)
	}
	folder := filepath.Join(kubelet, "plugins", name)
	if err := os.MkdirAll(folder, 0o750); err != nil {
		fail("folder", err)
	}
	helper, err := kubeletplugin.Start(context.Background(), driver{},
		kubeletplugin.DriverName(name), kubeletplugin.NodeName("node-a"),
		kubeletplugin.KubeClient(client), kubeletplugin.PluginDataDirectoryPath(folder),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(kubelet, "plugins_registry")))
	if err != nil {
		fail("start", err)
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	helper.Stop()
}

func fail(text string, err error) {
	fmt.Fprintln(os.Stderr, text, err)
	os.Exit(1)
}
